#include "plugin/runtime/backward_path.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstddef>

namespace dualpipe {

using torch::autograd::Edge;

BackwardPath::BackwardPath(const std::vector<Edge>& roots, const std::vector<Edge>& inputs) {
  for (const Edge& input : inputs) {
    seen_.insert(input.function.get());
    on_path_.insert(input.function.get());
  }
  for (const Edge& root : roots) walk(root.function);
}

// Depth first without recursion: graphs are as deep as models are.
void BackwardPath::walk(const NodePtr& root) {
  struct Visit {
    NodePtr node;
    std::size_t next_edge = 0;
  };
  std::vector<Visit> stack;
  const auto enter = [&](const NodePtr& node) {
    if (seen_.insert(node.get()).second) stack.push_back({node});
  };
  enter(root);
  while (!stack.empty()) {
    Visit& visit = stack.back();
    if (visit.next_edge == visit.node->num_outputs()) {
      leave(visit.node);
      stack.pop_back();
    } else if (const Edge& edge = visit.node->next_edge(visit.next_edge++); edge.is_valid()) {
      enter(edge.function);
    }
  }
}

// All nodes that `node` has edges to have been left before it.
void BackwardPath::leave(const NodePtr& node) {
  const auto& edges = node->next_edges();
  if (std::none_of(edges.begin(), edges.end(), [this](const Edge& edge) { return leads_on(edge); })) return;
  on_path_.insert(node.get());
  const bool is_frontier =
      std::any_of(edges.begin(), edges.end(), [this](const Edge& edge) { return leads_off(edge); });
  (is_frontier ? frontier_ : interior_).push_back(node);
}

}  // namespace dualpipe
