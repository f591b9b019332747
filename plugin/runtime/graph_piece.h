// plugin/runtime/graph_piece.h
//
// A graph that is cut at both ends: from leaves to the gradient edges of what was computed from them. The outputs
// themselves are not kept.
#pragma once

#include <vector>

#include "plugin/runtime/split_backward.h"
#include "plugin/runtime/stage_graph.h"

namespace dualpipe {

class GraphPiece {
 public:
  void begin(TensorList leaves) { leaves_ = std::move(leaves); }
  const TensorList& leaves() const { return leaves_; }

  // Keeps the graph of the loss where that is defined, else that of the outputs.
  void keep(const StageOutputs& outputs);

  // Both take one gradient per output, or that of the loss, give those of the leaves, and let go of everything. I
  // leaves its weight work in the site's store, sealed under `key`.
  TensorList backward(const TensorList& gradients);
  TensorList backward_input(const TensorList& gradients, const GraphSite& site, WeightGradStore::Key key);

 private:
  GraphRoots take_roots(const TensorList& gradients);

  TensorList leaves_;
  GraphRoots roots_;
  std::vector<int> root_outputs_;  // Which output each root belongs to.
};

}  // namespace dualpipe
