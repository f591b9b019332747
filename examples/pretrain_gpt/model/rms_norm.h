// examples/pretrain_gpt/model/rms_norm.h
//
// x / sqrt(mean(x^2) + norm_epsilon) * weight, over the last dimension.
#pragma once

#include <torch/nn/module.h>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

class RmsNorm : public torch::nn::Module {
 public:
  explicit RmsNorm(const Config& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double epsilon_;
};

}  // namespace pretrain_gpt
