// examples/pretrain_gpt/rank_parameters.h
//
// One rank's parameters with their names, their gradients and their place in the parallel layout.
//
// Gradients add up in `.grad`, or in float32 main gradients beside parameters of lower precision: a bfloat16 sum loses
// what is 256 times smaller than itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

using NamedTensors = std::map<std::string, at::Tensor>;

struct RankParameter {
  std::string name;  // Logical: the same under every layout.
  at::Tensor parameter;
  at::Tensor main_gradient;  // Undefined where gradients are in `.grad`.
  ParameterLayout layout;

  at::Tensor gradient() const;  // Undefined where there is none.
};

// Sorted by name; a weight that two chunks share comes once.
std::vector<RankParameter> rank_parameters(const std::vector<GptChunk*>& chunks,
                                           const NamedTensors& main_gradients = {});

// Of the gradients that there are now.
std::int64_t gradient_bytes(const std::vector<RankParameter>& parameters);

// Zeros in float32, by logical name; none where the configuration has gradients add up in `.grad`.
NamedTensors make_main_gradients(const Config& config, const std::vector<GptChunk*>& chunks);

// From now on whatever backward adds to `.grad` of `parameter` is moved to `main_gradient`.
void move_gradients(const at::Tensor& parameter, const at::Tensor& main_gradient);

}  // namespace pretrain_gpt
