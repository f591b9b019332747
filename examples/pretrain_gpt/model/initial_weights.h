// examples/pretrain_gpt/model/initial_weights.h
//
// Initial values of parameters. They depend on the seed and the parameter's logical name, which has its layer's index,
// and on nothing else: not on the division into stages or over tensor-parallel ranks, nor on the order in which modules
// are built.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

at::ScalarType params_dtype(const Config& config);

// Part `index` of `count` of a weight, along one dimension. Of a dimension that holds several matrices (queries, keys
// and values) a part has its part of each.
struct WeightPart {
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;  // Matrices of equal size.
  std::int64_t index = 0, count = 1;
};

// size / parts. Throws UserError where that leaves a rest.
std::int64_t part_size(std::int64_t size, std::int64_t parts);

// Normal with mean 0, drawn in double whatever params_dtype is, and whole whatever part of it is asked for. `shape` is
// that of the whole weight. Leaves that require a gradient.
at::Tensor normal_weight(const Config& config, const std::string& logical_name, at::IntArrayRef shape, double std,
                         const WeightPart& part = {});
at::Tensor ones_weight(const Config& config, at::IntArrayRef shape);

// Standard deviation for the two matrices of a layer that write to the residual stream: init_method_std / sqrt(2
// layers).
double residual_std(const Config& config);

}  // namespace pretrain_gpt
