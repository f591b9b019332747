#include "examples/pretrain_gpt/rank_parameters.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {
namespace {

class MoveGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit MoveGradient(at::Tensor main_gradient) : main_gradient_(std::move(main_gradient)) {}

  void operator()(const at::Tensor& parameter) override {
    const at::NoGradGuard no_grad;
    main_gradient_.add_(std::exchange(parameter.mutable_grad(), at::Tensor()));
  }

 private:
  at::Tensor main_gradient_;
};

std::map<std::string, RankParameter> by_name(const std::vector<GptChunk*>& chunks) {
  std::map<std::string, RankParameter> parameters;
  for (const GptChunk* chunk : chunks) {
    for (const auto& item : chunk->named_parameters()) {
      parameters.try_emplace(item.key(),
                             RankParameter{item.key(), item.value(), at::Tensor(), chunk->layout_of(item.key())});
    }
  }
  return parameters;
}

}  // namespace

at::Tensor RankParameter::gradient() const { return main_gradient.defined() ? main_gradient : parameter.grad(); }

std::vector<RankParameter> rank_parameters(const std::vector<GptChunk*>& chunks, const NamedTensors& main_gradients) {
  std::vector<RankParameter> parameters;
  for (auto& [name, parameter] : by_name(chunks)) {
    const auto main_gradient = main_gradients.find(name);
    if (main_gradient != main_gradients.end()) {
      parameter.main_gradient = main_gradient->second;
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

std::int64_t gradient_bytes(const std::vector<RankParameter>& parameters) {
  std::int64_t bytes = 0;
  for (const RankParameter& parameter : parameters) {
    const at::Tensor gradient = parameter.gradient();
    bytes += gradient.defined() ? static_cast<std::int64_t>(gradient.nbytes()) : 0;
  }
  return bytes;
}

NamedTensors make_main_gradients(const Config& config, const std::vector<GptChunk*>& chunks) {
  NamedTensors main_gradients;
  if (config.accumulates_in_float32() && params_dtype(config) != at::kFloat) {
    for (const auto& [name, parameter] : by_name(chunks)) {
      main_gradients.emplace(name, at::zeros(parameter.parameter.sizes(), at::kFloat));
    }
  }
  return main_gradients;
}

void move_gradients(const at::Tensor& parameter, const at::Tensor& main_gradient) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<MoveGradient>(main_gradient));
}

}  // namespace pretrain_gpt
