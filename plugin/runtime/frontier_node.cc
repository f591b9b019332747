#include "plugin/runtime/frontier_node.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <cstdint>
#include <utility>

#include "plugin/runtime/gradient_source.h"
#include "plugin/schedule/error.h"

namespace dualpipe {

using torch::autograd::Edge;
using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::Node;

void WeightRoots::add(Edge edge, at::Tensor gradient) {
  edges.push_back(std::move(edge));
  gradients.push_back(std::move(gradient));
}

struct NodeRecord {
  NodeRecord(const Node& node, const BackwardPath& path, const WeightGradStore& store) : store(store) {
    for (const Edge& edge : node.next_edges()) leads_off.push_back(path.leads_off(edge));
    computed.resize(leads_off.size());
  }

  const WeightGradStore& store;
  std::vector<bool> leads_off;          // By edge.
  std::vector<bool> computed;           // By edge.
  TensorList entered;                   // By input of the node.
  std::vector<std::uint32_t> versions;  // Of what entered, when it did.
  TensorList given;                     // By edge, after all hooks; only what leads off and was computed.
  std::size_t puts_before = 0;
  bool put = false;
};

namespace {

std::vector<std::uint32_t> versions_of(const TensorList& tensors) {
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor.defined() ? static_cast<std::uint32_t>(tensor._version()) : 0);
  }
  return versions;
}

// Hooks hold the record, and the record does not hold the node: a backward that throws leaves no cycle.
struct RecordEntered : FunctionPreHook {
  explicit RecordEntered(std::shared_ptr<NodeRecord> record) : record(std::move(record)) {}

  TensorList operator()(const TensorList& gradients) override {
    record->entered = gradients;
    record->versions = versions_of(gradients);
    record->puts_before = record->store.put_count();
    return gradients;
  }

  std::shared_ptr<NodeRecord> record;
};

// Comes before other post-hooks, which may make gradients out of undefined ones.
struct RecordComputed : FunctionPostHook {
  explicit RecordComputed(std::shared_ptr<NodeRecord> record) : record(std::move(record)) {}

  TensorList operator()(const TensorList& gradients, const TensorList&) override {
    record->put = record->store.put_count() != record->puts_before;
    for (std::size_t i = 0; i < gradients.size(); ++i) record->computed[i] = gradients[i].defined();
    return gradients;
  }

  std::shared_ptr<NodeRecord> record;
};

// Comes after other post-hooks, which may change gradients.
struct RecordGiven : FunctionPostHook {
  explicit RecordGiven(std::shared_ptr<NodeRecord> record) : record(std::move(record)) {}

  TensorList operator()(const TensorList& gradients, const TensorList&) override {
    record->given.resize(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (record->leads_off[i] && record->computed[i]) record->given[i] = gradients[i];
    }
    return gradients;
  }

  std::shared_ptr<NodeRecord> record;
};

template <typename Ours, typename Hooks>
void remove_of_type(Hooks& hooks) {
  std::erase_if(hooks, [](const auto& hook) { return dynamic_cast<const Ours*>(hook.get()) != nullptr; });
}

// Then the node neither computes a gradient for the edge nor reaches what lies behind it.
void cut(Node& node, std::size_t edge) {
  node.next_edges()[edge] = Edge();
  // An in-place operation on a view wraps the node that does the work, which has edges of its own.
  if (auto* wrapper = dynamic_cast<torch::autograd::CopySlices*>(&node)) wrapper->fn->next_edges()[edge] = Edge();
}

}  // namespace

FrontierNode::FrontierNode(NodePtr node, const BackwardPath& path, const WeightGradStore& store)
    : node_(std::move(node)), record_(std::make_shared<NodeRecord>(*node_, path, store)) {
  auto& post_hooks = node_->post_hooks();
  node_->add_pre_hook(std::make_unique<RecordEntered>(record_));
  post_hooks.insert(post_hooks.begin(), std::make_unique<RecordComputed>(record_));
  node_->add_post_hook(std::make_unique<RecordGiven>(record_));
}

FrontierNode::~FrontierNode() { remove_hooks(); }

void FrontierNode::remove_hooks() {
  if (!node_) return;
  remove_of_type<RecordEntered>(node_->pre_hooks());
  remove_of_type<RecordComputed>(node_->post_hooks());
  remove_of_type<RecordGiven>(node_->post_hooks());
}

bool FrontierNode::is_missing(std::size_t edge) const {
  return record_->leads_off[edge] && !record_->computed[edge] && !record_->put;
}

void FrontierNode::leave_to(WeightRoots& roots) && {
  remove_hooks();
  check(record_->entered.size() == node_->num_inputs(), "a node on the path did not run: " + node_->name());
  stand_in(roots);
  run_again(roots);
}

void FrontierNode::stand_in(WeightRoots& roots) const {
  std::vector<Edge> edges;
  TensorList gradients;
  for (std::size_t i = 0; i < record_->given.size(); ++i) {
    if (!record_->given[i].defined()) continue;
    edges.push_back(node_->next_edge(i));
    gradients.push_back(record_->given[i]);
  }
  if (edges.empty()) return;
  const at::Tensor like = gradients[0];
  roots.kept.insert(roots.kept.end(), gradients.begin(), gradients.end());
  roots.add(Edge(make_gradient_source(node_->sequence_nr(), std::move(edges), std::move(gradients), like), 0), like);
}

void FrontierNode::run_again(WeightRoots& roots) const {
  bool any_missing = false;
  for (std::size_t i = 0; i < node_->num_outputs(); ++i) {
    is_missing(i) ? void(any_missing = true) : cut(*node_, i);
  }
  if (!any_missing) return node_->release_variables();
  if (versions_of(record_->entered) != record_->versions) {
    throw ScheduleError("split backward", "a backward must leave the gradient that it is given as it is, got " +
                                              node_->name() + ", which overwrote it; let it work on a clone");
  }
  // These have acted already, on the gradients that were recorded after them. Post-hooks stay: they act on the rest.
  node_->tensor_pre_hooks().clear();
  node_->retains_grad_hooks().clear();
  node_->pre_hooks().clear();
  for (std::size_t i = 0; i < record_->entered.size(); ++i) {
    roots.add(Edge(node_, static_cast<std::uint32_t>(i)), record_->entered[i]);
  }
}

}  // namespace dualpipe
