#include "plugin/runtime/graph_piece.h"

#include <utility>

namespace dualpipe {

void GraphPiece::keep(const StageOutputs& outputs) {
  root_outputs_.clear();
  roots_ = roots_of(outputs.loss.defined() ? TensorList{outputs.loss} : outputs.tensors, &root_outputs_);
}

GraphRoots GraphPiece::take_roots(const TensorList& gradients) {
  GraphRoots roots = std::exchange(roots_, {});
  for (std::size_t i = 0; i < roots.edges.size(); ++i) roots.gradients[i] = gradients.at(root_outputs_[i]);
  return roots;
}

TensorList GraphPiece::backward(const TensorList& gradients) {
  TensorList input_grads = full_backward(take_roots(gradients), leaves_);
  *this = {};
  return input_grads;
}

TensorList GraphPiece::backward_input(const TensorList& gradients, const GraphSite& site, WeightGradStore::Key key) {
  site.store.begin();
  SplitResult split = input_backward(take_roots(gradients), leaves_, site.store);
  site.store.seal(key);
  if (split.weight_work) site.store.add(key, std::move(split.weight_work), split.bytes);
  site.recorder.saw_pending_bytes(site.store.pending_bytes());
  *this = {};
  return std::move(split.input_grads);
}

}  // namespace dualpipe
