#include "examples/pretrain_gpt/model/transformer_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {

RmsNorm::RmsNorm(const Config& config)
    : weight_(register_parameter("weight", ones_weight(config, {config.hidden_size}))), epsilon_(config.norm_epsilon) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) { return at::rms_norm(x, weight_.sizes(), weight_, epsilon_); }

Attention::Attention(const Config& config, const std::string& name, std::shared_ptr<const Rotary> rotary)
    : rotary_(std::move(rotary)), heads_(config.num_attention_heads) {
  const std::int64_t h = config.hidden_size;
  qkv_ = register_module(
      "qkv", std::make_shared<Weight>(normal_weight(config, name + ".qkv.weight", {3 * h, h}, config.init_method_std)));
  proj_ = register_module(
      "proj", std::make_shared<Weight>(normal_weight(config, name + ".proj.weight", {h, h}, residual_std(config))));
}

at::Tensor Attention::forward(const at::Tensor& x) {
  const std::int64_t batch = x.size(0), length = x.size(1), hidden = x.size(2);
  const at::Tensor qkv =
      at::linear(x, qkv_->weight).view({batch, length, 3, heads_, hidden / heads_}).permute({2, 0, 3, 1, 4});
  const at::Tensor query = rotary_->apply(qkv.select(0, 0));
  const at::Tensor key = rotary_->apply(qkv.select(0, 1));
  const at::Tensor mixed = at::scaled_dot_product_attention(query, key, qkv.select(0, 2), {}, 0.0, /*is_causal=*/true);
  return at::linear(mixed.transpose(1, 2).reshape({batch, length, hidden}), proj_->weight);
}

Mlp::Mlp(const Config& config, const std::string& name) {
  const std::int64_t h = config.hidden_size, f = config.ffn_size();
  gate_up_ = register_module("gate_up", std::make_shared<Weight>(normal_weight(config, name + ".gate_up.weight",
                                                                               {2 * f, h}, config.init_method_std)));
  down_ = register_module(
      "down", std::make_shared<Weight>(normal_weight(config, name + ".down.weight", {h, f}, residual_std(config))));
}

at::Tensor Mlp::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> halves = at::linear(x, gate_up_->weight).chunk(2, -1);
  return at::linear(at::silu(halves[0]) * halves[1], down_->weight);
}

TransformerLayer::TransformerLayer(const Config& config, std::int64_t index, std::shared_ptr<const Rotary> rotary) {
  const std::string name = fmt::format("layers.{}", index);
  attention_norm_ = register_module("attention_norm", std::make_shared<RmsNorm>(config));
  attention_ =
      register_module("attention", std::make_shared<Attention>(config, name + ".attention", std::move(rotary)));
  mlp_norm_ = register_module("mlp_norm", std::make_shared<RmsNorm>(config));
  mlp_ = register_module("mlp", std::make_shared<Mlp>(config, name + ".mlp"));
}

at::Tensor TransformerLayer::forward(const at::Tensor& x) {
  const at::Tensor mixed = x + attention_->forward(attention_norm_->forward(x));
  return mixed + mlp_->forward(mlp_norm_->forward(mixed));
}

}  // namespace pretrain_gpt
