// examples/pretrain_gpt/model/transformer_layer.h
//
// A pre-norm transformer layer: x + attention(norm(x)), then x + mlp(norm(x)). RMS norms, causal attention with rotary
// embeddings, SwiGLU, no biases.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/rotary.h"

namespace pretrain_gpt {

// A parameter `weight` below a name of its own, so that logical names read "….<name>.weight".
struct Weight : torch::nn::Module {
  explicit Weight(at::Tensor value) : weight(register_parameter("weight", std::move(value))) {}
  at::Tensor weight;
};

class RmsNorm : public torch::nn::Module {
 public:
  explicit RmsNorm(const Config& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double epsilon_;
};

// `name` is the logical name of the module, "layers.3.attention".
class Attention : public torch::nn::Module {
 public:
  Attention(const Config& config, const std::string& name, std::shared_ptr<const Rotary> rotary);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<const Rotary> rotary_;
  std::shared_ptr<Weight> qkv_;   // [3 hidden, hidden]: queries, keys, values.
  std::shared_ptr<Weight> proj_;  // [hidden, hidden]
  std::int64_t heads_;
};

class Mlp : public torch::nn::Module {
 public:
  Mlp(const Config& config, const std::string& name);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<Weight> gate_up_;  // [2 ffn, hidden]: gate, up.
  std::shared_ptr<Weight> down_;     // [hidden, ffn]
};

class TransformerLayer : public torch::nn::Module {
 public:
  TransformerLayer(const Config& config, std::int64_t index, std::shared_ptr<const Rotary> rotary);

  // x: [batch, sequence, hidden]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<RmsNorm> attention_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<RmsNorm> mlp_norm_;
  std::shared_ptr<Mlp> mlp_;
};

}  // namespace pretrain_gpt
