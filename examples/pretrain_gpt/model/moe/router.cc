#include "examples/pretrain_gpt/model/moe/router.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <tuple>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/model/moe/auxiliary_loss.h"

namespace pretrain_gpt {
namespace {

at::ScalarType score_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

void validate(const Config& config, const std::string& name) {
  if (config.moe_router_topk < 1 || config.moe_router_topk > config.num_experts) {
    throw UserError(name, fmt::format("moe_router_topk must be from 1 to num_experts = {}, got {}; for example {}",
                                      config.num_experts, config.moe_router_topk, config.num_experts));
  }
}

}  // namespace

Router::Router(const Config& config, const ModelParallel& parallel, const std::string& name)
    : sequence_(parallel.sequence_parallel ? parallel.tensor : LayerGroup()),
      num_experts_(config.num_experts),
      topk_(config.moe_router_topk),
      loss_coefficient_(config.moe_router_load_balancing_type == "aux_loss" ? config.moe_aux_loss_coeff : 0),
      loss_scale_(1.0 / static_cast<double>(config.num_microbatches() * config.data_parallel_size)),
      bias_rate_(config.moe_router_bias_update_rate),
      counters_(std::make_shared<Counters>()) {
  validate(config, name);
  weight_ = register_parameter(
      "weight", normal_weight(config, name + ".weight", {num_experts_, config.hidden_size}, config.init_method_std));
  if (config.moe_router_enable_expert_bias) {
    expert_bias_ = register_buffer("expert_bias", at::zeros(num_experts_, score_dtype(weight_.scalar_type())));
  }
  reset_counters();
}

Routing Router::forward(const at::Tensor& x, std::optional<std::int64_t> samples) {
  const at::ScalarType dtype = score_dtype(x.scalar_type());
  const at::Tensor logits = at::linear(x.to(dtype), weight_.to(dtype));
  const at::Tensor scores = logits.softmax(-1);
  const at::Tensor ranked = expert_bias_.defined() ? scores.detach() + expert_bias_ : scores.detach();
  const at::Tensor experts = std::get<1>(ranked.topk(topk_));
  const at::Tensor weights = topk_ == 1 ? scores.gather(-1, experts) : logits.gather(-1, experts).softmax(-1);
  const std::int64_t count = samples.value_or(x.size(0));
  if (count == 0 || !at::GradMode::is_enabled()) {
    return {weights, experts};
  }
  const double share = static_cast<double>(count) / static_cast<double>(x.size(0));
  return {balanced(weights, scores.narrow(0, 0, count), experts.narrow(0, 0, count), share), experts};
}

at::Tensor Router::balanced(const at::Tensor& weights, const at::Tensor& scores, const at::Tensor& experts,
                            double share) {
  if (loss_coefficient_ == 0 && !expert_bias_.defined()) {
    return weights;
  }
  const at::Tensor counts = count_choices(experts, num_experts_);
  sum_over(sequence_.group, counts);
  if (loss_coefficient_ == 0) {
    count_in_backward(weights, {counts, at::zeros_like(counters_->auxiliary_loss)});
    return weights;
  }
  const std::int64_t tokens = experts.numel() / topk_ * sequence_.size();
  const at::Tensor loss = loss_coefficient_ * load_balancing_loss(scores, counts, tokens);
  const double scale = loss_scale_ * share;
  count_in_backward(weights, {counts, loss.detach() * scale});
  return with_loss(weights, loss, scale);
}

void Router::count_in_backward(const at::Tensor& weights, const Counters& micro_batch) const {
  if (weights.requires_grad()) {
    weights.register_hook([counters = counters_, micro_batch](const at::Tensor&) {
      counters->load += micro_batch.load;
      counters->auxiliary_loss += micro_batch.auxiliary_loss;
    });
  }
}

void Router::reset_counters() {
  const at::TensorOptions options = weight_.options().requires_grad(false);
  *counters_ = {at::zeros(num_experts_, options.dtype(at::kLong)), at::zeros({}, options.dtype(at::kDouble))};
}

void update_expert_bias(const std::vector<Router*>& routers, const std::vector<LayerGroup>& groups) {
  if (routers.empty()) {
    return;
  }
  std::vector<at::Tensor> loads;
  for (const Router* router : routers) {
    loads.push_back(router->counters_->load);
  }
  const at::Tensor load = at::stack(loads);
  for (const LayerGroup& group : groups) {
    sum_over(group.group, load);
  }
  const at::Tensor below_mean = (load.sum(1, true) - load * load.size(1)).sign();
  for (std::size_t i = 0; i < routers.size(); ++i) {
    if (routers[i]->expert_bias_.defined()) {
      routers[i]->expert_bias_ += below_mean[static_cast<std::int64_t>(i)] * routers[i]->bias_rate_;
    }
    routers[i]->reset_counters();
  }
}

}  // namespace pretrain_gpt
