#include "examples/pretrain_gpt/model/transformer_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/model/moe/moe_mlp.h"

namespace pretrain_gpt {
namespace {

HiddenOf only_tensor() {
  return [](const Tensors& inputs, std::int64_t) { return inputs.at(0); };
}

}  // namespace

TransformerLayer::TransformerLayer(const Config& config, const ModelParallel& parallel, std::int64_t index,
                                   std::shared_ptr<const Rotary> rotary)
    : config_(config), parallel_(parallel), index_(index), samples_(config.global_batch_size), dropout_(config, index) {
  const std::string name = fmt::format("layers.{}", index);
  attention_norm_ = register_module("attention_norm", std::make_shared<RmsNorm>(config));
  attention_ = register_module(
      "attention", std::make_shared<Attention>(config, parallel, index, name + ".attention", std::move(rotary)));
  mlp_norm_ = register_module("mlp_norm", std::make_shared<RmsNorm>(config));
  if (config.is_moe_layer(index)) {
    experts_ = register_module("mlp", std::make_shared<MoeMlp>(config, parallel, name + ".mlp"));
  } else {
    mlp_ = register_module("mlp", std::make_shared<Mlp>(config, parallel, name + ".mlp"));
  }
}

void TransformerLayer::set_step(std::int64_t step, std::int64_t samples) {
  step_ = step;
  samples_ = samples;
  if (is_moe()) {
    experts_->router().set_auxiliary_loss_scale(static_cast<double>(config_.micro_batch_size) /
                                                static_cast<double>(samples));
  }
}

ForwardPass TransformerLayer::pass(std::int64_t micro_batch) const {
  const std::int64_t left = samples_ - micro_batch * config_.micro_batch_size;
  return {step_, micro_batch, is_training(), std::clamp<std::int64_t>(left, 0, config_.micro_batch_size)};
}

HiddenOf TransformerLayer::add_phases(std::vector<ModelPhase>& phases, HiddenOf begin) {
  phases.push_back(attention_phase(std::move(begin)));
  if (!is_moe()) {
    phases.push_back(mlp_phase());
    return only_tensor();
  }
  for (ModelPhase& phase : experts_->phases(std::to_string(index_), attention_cost(config_))) {
    phase.recompute = phase.compute && config_.recompute_granularity == "full";
    phases.push_back(std::move(phase));
  }
  return [this](const Tensors& inputs, std::int64_t micro_batch) { return add_experts(inputs, pass(micro_batch)); };
}

std::vector<TensorForm> TransformerLayer::hidden_alone(const Config& config) {
  using Sizes = std::vector<std::optional<std::int64_t>>;
  return {TensorForm{params_dtype(config), Sizes{std::nullopt, std::nullopt, config.hidden_size}}};
}

ModelPhase TransformerLayer::attention_phase(HiddenOf begin) {
  const double scores = static_cast<double>(config_.seq_length * config_.hidden_size) / attention_cost(config_);
  ModelPhase phase;
  phase.name = fmt::format("{}.attention", index_);
  phase.forward = 1;
  phase.backward_input = 1 + scores;  // Two products with the scores instead of one, and none for W.
  phase.backward_weight = 1 - scores;
  phase.recompute = config_.recompute_granularity != "none";
  if (!is_moe()) {
    phase.gives = hidden_alone(config_);
  }
  phase.compute = [this, begin = std::move(begin)](const Tensors& inputs, PhaseState& state) -> Tensors {
    const ForwardPass pass = this->pass(state.micro_batch);
    const at::Tensor mixed = add_attention(begin(inputs, state.micro_batch), pass);
    return is_moe() ? experts_->route(mixed, mlp_norm_->forward(mixed), pass.samples) : Tensors{mixed};
  };
  return phase;
}

ModelPhase TransformerLayer::mlp_phase() {
  ModelPhase phase;
  phase.name = fmt::format("{}.mlp", index_);
  phase.forward = phase.backward_input = phase.backward_weight =
      3 * static_cast<double>(config_.hidden_size * config_.ffn_size()) / attention_cost(config_);
  phase.recompute = config_.recompute_granularity == "full";
  phase.takes = phase.gives = hidden_alone(config_);
  phase.compute = [this](const Tensors& inputs, PhaseState& state) -> Tensors {
    return {add_mlp(inputs.at(0), pass(state.micro_batch))};
  };
  return phase;
}

at::Tensor TransformerLayer::add_attention(const at::Tensor& x, const ForwardPass& pass) {
  return x + thinned(attention_->forward(attention_norm_->forward(x), pass), pass, "attention");
}

at::Tensor TransformerLayer::add_mlp(const at::Tensor& x, const ForwardPass& pass) {
  return x + thinned(mlp_->forward(mlp_norm_->forward(x)), pass, "mlp");
}

at::Tensor TransformerLayer::add_experts(const Tensors& inputs, const ForwardPass& pass) {
  return inputs.at(0) + thinned(experts_->finish(inputs), pass, "mlp");
}

at::Tensor TransformerLayer::thinned(const at::Tensor& x, const ForwardPass& pass, const char* position) const {
  const int part = parallel_.sequence_parallel ? parallel_.tensor.rank() : 0;
  return dropout_.apply(x, config_.hidden_dropout, pass, position, part);
}

ParameterLayout TransformerLayer::layout_of(const std::string& local_name) const {
  const std::string prefix = "mlp.";
  if (is_moe() && local_name.starts_with(prefix)) {
    return experts_->layout_of(local_name.substr(prefix.size()));
  }
  const bool is_divided = parallel_.tensor.size() > 1, is_norm = local_name.ends_with("_norm.weight");
  const bool by_columns = local_name == "attention.proj.weight" || local_name == "mlp.down.weight";
  return {.is_tensor_shard = is_divided && !is_norm,
          .is_sequence_partial = is_divided && is_norm && parallel_.sequence_parallel,
          .dimension = by_columns ? 1 : 0,
          .blocks = local_name == "attention.qkv.weight" ? 3
                    : local_name == "mlp.gate_up.weight" ? 2
                                                         : 1};
}

double TransformerLayer::attention_cost(const Config& config) {
  const auto h = static_cast<double>(config.hidden_size);
  return 4 * h * h + static_cast<double>(config.seq_length) * h;
}

}  // namespace pretrain_gpt
