// examples/pretrain_gpt/model/moe/experts.h
//
// SwiGLU networks: this rank's experts, each for the tokens that chose it, and one for all tokens.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/moe/token_dispatcher.h"
#include "examples/pretrain_gpt/model/weight.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// down(silu(gate(x)) * up(x)). Each rank of `group` has a part of the `width` inner columns, and its output is one
// summand of the result.
class Expert : public torch::nn::Module {
 public:
  Expert(const Config& config, const std::string& name, std::int64_t width, const LayerGroup& group);

  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<Weight> gate_up_;  // [2 width / ranks, hidden]: gate, up.
  std::shared_ptr<Weight> down_;     // [hidden, width / ranks]
};

// Experts rank x n .. rank x n + n - 1 of the model, n to a rank of `parallel.expert`, named by these indices.
class Experts : public torch::nn::Module {
 public:
  Experts(const Config& config, const ModelParallel& parallel, const std::string& name);

  // As rows.rows. The weights of an expert without rows get zeros as their gradient: an optimizer treats them alike,
  // wherever the expert is.
  at::Tensor forward(const ExpertRows& rows);

 private:
  std::vector<std::shared_ptr<Expert>> experts_;
};

}  // namespace pretrain_gpt
