// plugin/runtime/backward_path.h
//
// Which nodes of a backward graph lead from a stage's outputs to those of its inputs that need a gradient. The words
// are those of plugin/runtime/split_backward.h.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <unordered_set>
#include <vector>

namespace dualpipe {

using NodePtr = decltype(torch::autograd::Edge::function);

class BackwardPath {
 public:
  // `inputs` are the gradient edges of leaves. Visits each node that the roots reach once, and keeps alive what it
  // found.
  BackwardPath(const std::vector<torch::autograd::Edge>& roots, const std::vector<torch::autograd::Edge>& inputs);

  // True if the edge is valid and its node leads to an input, or is an input's own.
  bool leads_on(const torch::autograd::Edge& edge) const { return on_path_.contains(edge.function.get()); }
  bool leads_off(const torch::autograd::Edge& edge) const { return edge.is_valid() && !leads_on(edge); }

  // Nodes on the path, those of the inputs themselves excepted: with an edge that leads off, and without one.
  const std::vector<NodePtr>& frontier() const { return frontier_; }
  const std::vector<NodePtr>& interior() const { return interior_; }

 private:
  void walk(const NodePtr& root);
  void leave(const NodePtr& node);

  std::unordered_set<const torch::autograd::Node*> seen_;
  std::unordered_set<const torch::autograd::Node*> on_path_;
  std::vector<NodePtr> frontier_;
  std::vector<NodePtr> interior_;
};

}  // namespace dualpipe
