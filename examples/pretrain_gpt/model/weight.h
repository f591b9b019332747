// examples/pretrain_gpt/model/weight.h
//
// A parameter `weight` below a name of its own, so that logical names read "….<name>.weight".
#pragma once

#include <torch/nn/module.h>

#include <utility>

namespace pretrain_gpt {

struct Weight : torch::nn::Module {
  explicit Weight(at::Tensor value) : weight(register_parameter("weight", std::move(value))) {}
  at::Tensor weight;
};

}  // namespace pretrain_gpt
