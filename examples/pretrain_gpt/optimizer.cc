#include "examples/pretrain_gpt/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "examples/pretrain_gpt/distributed_optimizer.h"

namespace pretrain_gpt {
namespace {

using Part = DistributedOptimizer::Part;

double weight_decay(const Config& config, const at::Tensor& parameter) {
  return parameter.dim() > 1 ? config.weight_decay : 0;
}

torch::optim::AdamWOptions options(const Config& config, double weight_decay) {
  torch::optim::AdamWOptions options(config.lr);
  options.betas({config.adam_beta1, config.adam_beta2}).eps(config.adam_eps).weight_decay(weight_decay);
  return options;
}

// By group and decay, in the order of names on every rank.
std::vector<Part> divide(const Config& config, const std::vector<RankParameter>& parameters,
                         const ProcessGroups* groups) {
  std::vector<Part> parts;
  for (const RankParameter& parameter : parameters) {
    const bool is_divided = groups != nullptr && config.use_distributed_optimizer;
    const Group group = is_divided ? groups->copies_group(parameter.layout) : Group();
    const double decay = weight_decay(config, parameter.parameter);
    auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& other) {
      return other.group == group && other.options.weight_decay() == decay;
    });
    if (part == parts.end()) {
      part = parts.insert(parts.end(), Part{{}, {}, group, options(config, decay)});
    }
    part->parameters.push_back(parameter.parameter);
    part->main_gradients.push_back(parameter.main_gradient);
  }
  return parts;
}

std::unique_ptr<torch::optim::AdamW> make_adamw(const std::vector<Part>& parts) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Part& part : parts) {
    groups.emplace_back(part.parameters, std::make_unique<torch::optim::AdamWOptions>(part.options));
  }
  return std::make_unique<torch::optim::AdamW>(groups);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Config& config, const std::vector<GptChunk*>& chunks,
                                                        const NamedTensors& main_gradients,
                                                        const ProcessGroups* groups) {
  std::vector<Part> parts = divide(config, rank_parameters(chunks, main_gradients), groups);
  if (config.use_distributed_optimizer || config.params_dtype == "bfloat16") {
    return std::make_unique<DistributedOptimizer>(std::move(parts));
  }
  return make_adamw(parts);
}

std::int64_t state_bytes(const torch::optim::Optimizer& optimizer) {
  if (const auto* distributed = dynamic_cast<const DistributedOptimizer*>(&optimizer)) {
    return distributed->state_bytes();
  }
  std::int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state);
    bytes += static_cast<std::int64_t>(moments.exp_avg().nbytes() + moments.exp_avg_sq().nbytes());
  }
  return bytes;
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
