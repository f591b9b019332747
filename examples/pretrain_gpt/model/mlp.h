// examples/pretrain_gpt/model/mlp.h
//
// The SwiGLU of a dense layer, its width divided over the tensor-parallel ranks.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/weight.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class Mlp : public torch::nn::Module {
 public:
  // `name` is the logical name of the module, "layers.3.mlp".
  Mlp(const Config& config, const ModelParallel& parallel, const std::string& name);

  // x and the result: [batch, sequence, hidden], under sequence parallel this rank's part of the sequence.
  at::Tensor forward(const at::Tensor& x);

 private:
  ModelParallel parallel_;
  std::shared_ptr<Weight> gate_up_;  // [2 ffn, hidden]: gate, up; this rank's rows of each.
  std::shared_ptr<Weight> down_;     // [hidden, ffn]; this rank's columns.
};

}  // namespace pretrain_gpt
