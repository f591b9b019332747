// examples/pretrain_gpt/model/attention.h
//
// Causal self-attention with rotary embeddings, its heads divided over the tensor-parallel ranks.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/dropout.h"
#include "examples/pretrain_gpt/model/rotary.h"
#include "examples/pretrain_gpt/model/weight.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class Attention : public torch::nn::Module {
 public:
  // Of layer `layer`; `name` is the logical name of the module, "layers.3.attention".
  Attention(const Config& config, const ModelParallel& parallel, std::int64_t layer, const std::string& name,
            std::shared_ptr<const Rotary> rotary);

  // x and the result: [batch, sequence, hidden], under sequence parallel this rank's part of the sequence.
  at::Tensor forward(const at::Tensor& x, const ForwardPass& pass);

 private:
  at::Tensor mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const ForwardPass& pass) const;

  ModelParallel parallel_;
  std::shared_ptr<const Rotary> rotary_;
  Dropout dropout_;
  double dropout_p_;
  std::int64_t head_size_, heads_;  // Heads of this rank.
  std::shared_ptr<Weight> qkv_;     // [3 hidden, hidden]: queries, keys, values; this rank's rows of each.
  std::shared_ptr<Weight> proj_;    // [hidden, hidden]; this rank's columns.
};

}  // namespace pretrain_gpt
