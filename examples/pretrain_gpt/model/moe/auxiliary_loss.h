// examples/pretrain_gpt/model/moe/auxiliary_loss.h
//
// A loss that is not at the end of the model: how unevenly a router spreads tokens, and its way into backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pretrain_gpt {

// The load-balancing loss of the Switch Transformer (Fedus et al. 2021, equation 4) for more than one expert per token:
//   num_experts x sum over experts of f x P
// f: the expert's share of all choices of the micro-batch; P: the mean of its scores over all tokens. It is 1 where all
// is even, and only P carries a gradient.
//
// scores: [..., num_experts] of this rank's tokens; counts: [num_experts], choices among all `tokens`, which are more
// where ranks hold parts of the sequence: the loss is then the sum of the ranks' results.
at::Tensor load_balancing_loss(const at::Tensor& scores, const at::Tensor& counts, std::int64_t tokens);

// x as it is. Its backward adds `scale` times the gradient of `loss`, a scalar, whatever the gradient of x is.
at::Tensor with_loss(const at::Tensor& x, const at::Tensor& loss, double scale);

}  // namespace pretrain_gpt
