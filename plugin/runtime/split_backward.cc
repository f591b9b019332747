#include "plugin/runtime/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "plugin/runtime/backward_path.h"
#include "plugin/runtime/frontier_node.h"
#include "plugin/runtime/gradient_source.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using torch::autograd::Edge;

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

void check_roots(const GraphRoots& roots) {
  check(roots.edges.size() == roots.gradients.size(), "a backward needs one gradient per root, defined or not");
}

// Sets the inputs' gradients aside, so that a backward leaves its own in their place, and brings them back at the end.
class InputGradients {
 public:
  explicit InputGradients(const TensorList& inputs) : inputs_(inputs), earlier_(inputs.size()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (needs_gradient(inputs[i])) earlier_[i] = std::exchange(inputs[i].mutable_grad(), {});
    }
  }
  // Last first: of an input that is listed twice, the first has the earlier gradient.
  ~InputGradients() {
    for (std::size_t i = inputs_.size(); i-- > 0;) {
      if (needs_gradient(inputs_[i])) inputs_[i].mutable_grad() = earlier_[i];
    }
  }
  InputGradients(const InputGradients&) = delete;
  InputGradients& operator=(const InputGradients&) = delete;

  TensorList get() const {
    TensorList gradients(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (needs_gradient(inputs_[i])) gradients[i] = inputs_[i].grad();
    }
    return gradients;
  }

 private:
  const TensorList& inputs_;
  TensorList earlier_;
};

// The gradient edges of the inputs that need a gradient, and which inputs these are.
struct InputEdges {
  explicit InputEdges(const TensorList& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!needs_gradient(inputs[i])) continue;
      check(inputs[i].is_leaf(), "inputs of a stage are leaves");
      edges.push_back(torch::autograd::impl::gradient_edge(inputs[i]));
      indices.push_back(i);
    }
  }

  std::vector<Edge> edges;
  std::vector<std::size_t> indices;
};

// A node without parameters is through once it has run, and frees its saved tensors as plain backward would.
struct ReleaseAfterRun : torch::autograd::FunctionPostHook {
  explicit ReleaseAfterRun(torch::autograd::Node& node) : node(node) {}

  TensorList operator()(const TensorList& gradients, const TensorList&) override {
    node.release_variables();
    return gradients;
  }

  torch::autograd::Node& node;
};

// Runs the engine from the path's roots to the inputs alone.
TensorList run_path(const GraphRoots& on_path, const TensorList& inputs, const InputEdges& input_edges) {
  TensorList captured = torch::autograd::Engine::get_default_engine().execute(
      on_path.edges, on_path.gradients, /*keep_graph=*/true, /*create_graph=*/false, /*accumulate_grad=*/false,
      input_edges.edges);
  TensorList gradients(inputs.size());
  for (std::size_t i = 0; i < captured.size(); ++i) gradients[input_edges.indices[i]] = std::move(captured[i]);
  return gradients;
}

// The roots on the path; the others are W's.
GraphRoots divide(const GraphRoots& roots, const BackwardPath& path, WeightRoots& off_path) {
  GraphRoots on_path;
  for (std::size_t i = 0; i < roots.edges.size(); ++i) {
    if (path.leads_on(roots.edges[i])) {
      on_path.edges.push_back(roots.edges[i]);
      on_path.gradients.push_back(roots.gradients[i]);
    } else {
      off_path.add(roots.edges[i], roots.gradients[i]);
    }
  }
  return on_path;
}

GraphRoots without_undefined(const GraphRoots& roots) {
  GraphRoots defined;
  for (std::size_t i = 0; i < roots.edges.size(); ++i) {
    if (!roots.gradients[i].defined()) continue;
    defined.edges.push_back(roots.edges[i]);
    defined.gradients.push_back(roots.gradients[i]);
  }
  return defined;
}

// Each storage once, since a gradient that enters several nodes is one tensor.
std::size_t bytes_of(const WeightRoots& roots) {
  std::size_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (const TensorList* tensors : {&roots.gradients, &roots.kept}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || !tensor.has_storage()) continue;
      const at::Storage& storage = tensor.storage();
      if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes += storage.nbytes();
    }
  }
  return bytes;
}

std::function<void()> make_weight_work(WeightRoots roots) {
  if (roots.edges.empty()) return {};
  roots.kept.clear();
  auto pending = std::make_shared<std::optional<WeightRoots>>(std::move(roots));
  return [pending] {
    check(pending->has_value(), "weight work runs once");
    WeightRoots now = std::move(**pending);
    pending->reset();
    accumulate_from(std::move(now.edges), std::move(now.gradients));
  };
}

}  // namespace

GraphRoots roots_of(const TensorList& outputs, std::vector<int>* indices) {
  GraphRoots roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!needs_gradient(outputs[i])) continue;
    roots.edges.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    if (indices) indices->push_back(static_cast<int>(i));
  }
  roots.gradients.resize(roots.edges.size());
  return roots;
}

TensorList full_backward(const GraphRoots& roots, const TensorList& inputs) {
  check_roots(roots);
  const GraphRoots defined = without_undefined(roots);
  if (defined.edges.empty()) return TensorList(inputs.size());
  const InputGradients input_gradients(inputs);
  torch::autograd::Engine::get_default_engine().execute(defined.edges, defined.gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
  return input_gradients.get();
}

SplitResult input_backward(const GraphRoots& roots, const TensorList& inputs, const WeightGradStore& store) {
  check_roots(roots);
  const GraphRoots defined = without_undefined(roots);
  const InputEdges input_edges(inputs);
  const BackwardPath path(defined.edges, input_edges.edges);

  WeightRoots weight_roots;
  const GraphRoots on_path = divide(defined, path, weight_roots);
  std::vector<FrontierNode> frontier;
  frontier.reserve(path.frontier().size());
  for (const NodePtr& node : path.frontier()) frontier.emplace_back(node, path, store);
  for (const NodePtr& node : path.interior()) node->add_post_hook(std::make_unique<ReleaseAfterRun>(*node));

  SplitResult result{TensorList(inputs.size()), {}, 0};
  if (!on_path.edges.empty()) result.input_grads = run_path(on_path, inputs, input_edges);
  for (FrontierNode& node : frontier) std::move(node).leave_to(weight_roots);
  result.bytes = bytes_of(weight_roots);
  result.weight_work = make_weight_work(std::move(weight_roots));
  return result;
}

}  // namespace dualpipe
