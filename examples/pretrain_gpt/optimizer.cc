#include "examples/pretrain_gpt/optimizer.h"

#include <cmath>
#include <numbers>
#include <set>
#include <utility>

namespace pretrain_gpt {
namespace {

struct ParameterGroups {
  std::vector<at::Tensor> decayed, others;
};

ParameterGroups group_parameters(const std::vector<GptChunk*>& chunks) {
  ParameterGroups groups;
  std::set<const at::TensorImpl*> seen;
  for (const GptChunk* chunk : chunks) {
    for (const at::Tensor& parameter : chunk->parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
        (parameter.dim() > 1 ? groups.decayed : groups.others).push_back(parameter);
      }
    }
  }
  return groups;
}

std::unique_ptr<torch::optim::OptimizerOptions> options(const Config& config, double weight_decay) {
  auto options = std::make_unique<torch::optim::AdamWOptions>(config.lr);
  options->betas({config.adam_beta1, config.adam_beta2}).eps(config.adam_eps).weight_decay(weight_decay);
  return options;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Config& config, const std::vector<GptChunk*>& chunks) {
  ParameterGroups parameters = group_parameters(chunks);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(parameters.decayed), options(config, config.weight_decay));
  groups.emplace_back(std::move(parameters.others), options(config, 0.0));
  return std::make_unique<torch::optim::AdamW>(groups);
}

double learning_rate(const Config& config, std::int64_t iteration) {
  if (iteration <= config.lr_warmup_iters) {
    return config.lr * static_cast<double>(iteration) / static_cast<double>(config.lr_warmup_iters);
  }
  const std::int64_t end = config.lr_decay_iters.value_or(config.train_iters);
  if (iteration >= end) {
    return config.min_lr;
  }
  const double progress =
      static_cast<double>(iteration - config.lr_warmup_iters) / static_cast<double>(end - config.lr_warmup_iters);
  return config.min_lr + (config.lr - config.min_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
}

}  // namespace pretrain_gpt
