// plugin/runtime/nn/linear.h
//
// torch.nn.Linear that puts its weight gradient into the executor's WeightGradStore when its backward runs as an I, as
// an example of a layer that knows how to split. Same parameters, initialisation and results as torch::nn::Linear;
// outside a pipeline it computes everything at once.
#pragma once

#include <torch/nn/modules/linear.h>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe::nn {

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  // input [..., in_features] -> [..., out_features]
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(Linear);

// y = x W^T + b, whose backward splits. `bias` may be undefined. The bias gradient is part of W. Closures accumulate
// into leaves, hooks included; a weight that is computed from others, and a call under autocast, is left to the
// runtime's own split. A layer that is called twice in one stage accumulates twice, one after the other.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace dualpipe::nn
