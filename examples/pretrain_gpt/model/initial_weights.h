// examples/pretrain_gpt/model/initial_weights.h
//
// Initial values of parameters. They depend on the seed and the parameter's logical name, which has its layer's index,
// and on nothing else: not on the division into stages, nor on the order in which modules are built.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

at::ScalarType params_dtype(const Config& config);

// Normal with mean 0, drawn in double whatever params_dtype is. Leaves that require a gradient.
at::Tensor normal_weight(const Config& config, const std::string& logical_name, at::IntArrayRef shape, double std);
at::Tensor ones_weight(const Config& config, at::IntArrayRef shape);

// Standard deviation for the two matrices of a layer that write to the residual stream: init_method_std / sqrt(2
// layers).
double residual_std(const Config& config);

}  // namespace pretrain_gpt
