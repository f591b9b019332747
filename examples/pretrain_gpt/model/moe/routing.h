// examples/pretrain_gpt/model/moe/routing.h
//
// What a router chose.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pretrain_gpt {

// For each token, in the last dimension, its choices.
struct Routing {
  at::Tensor weights;  // Floating point, with a graph.
  at::Tensor experts;  // int64, global.
};

// int64 [num_experts]: how often each was chosen. The host does not wait for the device.
at::Tensor count_choices(const at::Tensor& experts, std::int64_t num_experts);

}  // namespace pretrain_gpt
