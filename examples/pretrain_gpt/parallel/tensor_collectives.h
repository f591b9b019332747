// examples/pretrain_gpt/parallel/tensor_collectives.h
//
// What tensor-parallel layers communicate, as differentiable functions.
//
// All ranks of the group call a function with equal shapes, and its backward takes place on all of them; each returns
// when its result is there. Sums are the same to the bit on every rank. A group of one gives back its argument. Sums of
// bfloat16 on the CPU are taken in float32.
//
// The sequence is dimension 1; `x` is contiguous or not.
#pragma once

#include <ATen/core/Tensor.h>

#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// x as it is; its gradient is the sum of the ranks' gradients.
at::Tensor copy_to_tensor_ranks(const at::Tensor& x, const LayerGroup& group);

// The sum of the ranks' x; its gradient, the same on all ranks, as it is.
at::Tensor sum_over_tensor_ranks(const at::Tensor& x, const LayerGroup& group);

// The ranks' parts of the sequence, joined, for ranks that do different things with it; gradients are summed, and each
// rank gets those of its part.
at::Tensor gather_sequence(const at::Tensor& x, const LayerGroup& group);

// This rank's part of the sequence in the sum of the ranks' x; gradients are joined.
at::Tensor sum_and_split_sequence(const at::Tensor& x, const LayerGroup& group);

// This rank's part of a sequence that all ranks have; gradients are joined.
at::Tensor split_sequence(const at::Tensor& x, const LayerGroup& group);

// The ranks' parts, joined, for ranks that all do the same with it; each takes its part of the gradient.
at::Tensor join_sequence(const at::Tensor& x, const LayerGroup& group);

// The largest of the ranks' values, element by element. It carries no gradient.
at::Tensor max_over_tensor_ranks(const at::Tensor& x, const LayerGroup& group);

// From what lies between tensor-parallel regions to what all their ranks work on, and back: copy and sum or, with a
// divided sequence, gather and sum_and_split.
at::Tensor enter_tensor_region(const at::Tensor& x, const ModelParallel& parallel);
at::Tensor leave_tensor_region(const at::Tensor& x, const ModelParallel& parallel);

}  // namespace pretrain_gpt
