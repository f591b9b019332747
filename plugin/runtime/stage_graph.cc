#include "plugin/runtime/stage_graph.h"

namespace dualpipe {

TensorList leaves_of(const TensorList& tensors) {
  TensorList leaves;
  leaves.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    leaves.push_back(tensor.defined() ? tensor.detach().set_requires_grad(tensor.requires_grad()) : at::Tensor());
  }
  return leaves;
}

}  // namespace dualpipe
