// plugin/runtime/frontier_node.h
//
// A frontier node (plugin/runtime/split_backward.h) from the start of I to what W has left to do for it.
//
// While I runs, hooks record the gradients that enter the node, after all hooks of tensors and of the node itself, and
// see which gradients it computed and whether it put closures into the store. Afterwards the node is one of
//   done       everything is computed, or in the store: what it gave to edges that lead off the path stands in for it
//   to be run  from the recorded gradients, along the edges off the path that are still missing and no others
// or both: a custom Function that gives the gradient of its bias unasked, but not that of its weight.
#pragma once

#include <memory>
#include <vector>

#include "plugin/runtime/backward_path.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/runtime/weight_grad_store.h"

namespace dualpipe {

// Where W starts: one gradient per edge, some undefined.
struct WeightRoots {
  std::vector<torch::autograd::Edge> edges;
  TensorList gradients;
  TensorList kept;  // Gradients that stand-ins give.

  void add(torch::autograd::Edge edge, at::Tensor gradient);
};

struct NodeRecord;  // What its hooks saw.

class FrontierNode {
 public:
  // Adds the hooks. The path and the store must outlive the run of I.
  FrontierNode(NodePtr node, const BackwardPath& path, const WeightGradStore& store);
  // Takes them away again.
  ~FrontierNode();
  FrontierNode(FrontierNode&&) noexcept = default;
  FrontierNode& operator=(FrontierNode&&) = delete;

  // After I. Adds what W has left to do, cuts the node off from the path and frees what it no longer needs.
  void leave_to(WeightRoots& roots) &&;

 private:
  void remove_hooks();
  void stand_in(WeightRoots& roots) const;
  void run_again(WeightRoots& roots) const;
  bool is_missing(std::size_t edge) const;

  NodePtr node_;
  std::shared_ptr<NodeRecord> record_;
};

}  // namespace dualpipe
