#include "examples/pretrain_gpt/model/moe/moe_mlp.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/model/moe/all_to_all_dispatcher.h"
#include "examples/pretrain_gpt/model/moe/passing.h"
#include "examples/pretrain_gpt/model/run_phases.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

namespace pretrain_gpt {
namespace {

void validate(const Config& config, const ModelParallel& parallel, const std::string& name) {
  const std::int64_t experts = config.num_experts, ranks = parallel.expert.size();
  if (experts % ranks != 0) {
    throw UserError(name, fmt::format("expert_model_parallel_size must divide num_experts = {}, got {}; for example {}",
                                      experts, ranks, std::gcd(experts, ranks)));
  }
  const int tensor = parallel.tensor.size(), expert_tensor = parallel.expert_tensor.size();
  if (expert_tensor != 1 && expert_tensor != tensor) {
    throw UserError(name, fmt::format("expert_tensor_parallel_size must be 1 or tensor_model_parallel_size = {}, got "
                                      "{}; for example {}",
                                      tensor, expert_tensor, tensor));
  }
  if (expert_tensor != tensor && !parallel.sequence_parallel) {
    throw UserError(name, fmt::format("sequence_parallel must be true where expert_tensor_parallel_size = 1 and "
                                      "tensor_model_parallel_size = {}, got false; for example true",
                                      tensor));
  }
}

double multiplications(const Config& config) {
  const std::int64_t width =
      config.moe_router_topk * config.moe_ffn_size() + config.moe_shared_expert_intermediate_size;
  return 3 * static_cast<double>(config.hidden_size * width);
}

}  // namespace

MoeMlp::MoeMlp(const Config& config, const ModelParallel& parallel, const std::string& name,
               std::unique_ptr<TokenDispatcher> dispatcher)
    : multiplications_(multiplications(config)), parallel_(parallel), dispatcher_(std::move(dispatcher)) {
  validate(config, parallel, name);
  router_ = register_module("router", std::make_shared<Router>(config, parallel, name + ".router"));
  experts_ = register_module("experts", std::make_shared<Experts>(config, parallel, name + ".experts"));
  if (config.moe_shared_expert_intermediate_size > 0) {
    shared_expert_ = register_module(
        "shared_expert", std::make_shared<Expert>(config, name + ".shared_expert",
                                                  config.moe_shared_expert_intermediate_size, parallel.tensor));
  }
  if (!dispatcher_) {
    dispatcher_ = std::make_unique<AllToAllDispatcher>(config.num_experts, parallel.expert, name);
  }
}

at::Tensor MoeMlp::forward(const at::Tensor& x) {
  return finish(run_phases(phases("moe", 1), route(x, x), /*micro_batch=*/0));
}

Tensors MoeMlp::route(const at::Tensor& residual, const at::Tensor& x, std::optional<std::int64_t> samples) {
  const Routing part = router_->forward(x, samples);
  const at::Tensor tokens = entered(x);
  const Routing routing{entered(part.weights).flatten(0, 1), entered(part.experts).flatten(0, 1)};
  Tensors list{residual};
  if (shared_expert_) {
    list.push_back(tokens);
  }
  return with_passing(list, dispatcher_->prepare(tokens.flatten(0, 1), routing));
}

std::vector<ModelPhase> MoeMlp::phases(const std::string& prefix, double unit) {
  const double experts = multiplications_ / unit, exchange = (1 + experts) / 2;
  return {counts_phase(prefix + ".counts"),
          exchange_phase(prefix + ".dispatch", exchange, &TokenDispatcher::dispatch, &TokenDispatcher::dispatch_back),
          experts_phase(prefix + ".experts", experts),
          exchange_phase(prefix + ".combine", exchange, &TokenDispatcher::combine, &TokenDispatcher::combine_back)};
}

at::Tensor MoeMlp::finish(const Tensors& inputs) {
  const at::Tensor routed = dispatcher_->finish(dispatchers(inputs)).unflatten(0, {inputs[0].size(0), -1});
  if (!shared_expert_) {
    return divides_experts() ? leave_tensor_region(routed, parallel_) : routed;
  }
  return divides_experts() ? leave_tensor_region(routed + inputs[1], parallel_) : routed + inputs[1];
}

ParameterLayout MoeMlp::layout_of(const std::string& local_name) const {
  ParameterLayout layout;
  layout.dimension = local_name.ends_with(".down.weight") ? 1 : 0;
  layout.blocks = local_name.ends_with(".gate_up.weight") ? 2 : 1;
  layout.is_expert = local_name.starts_with("experts.");
  if (layout.is_expert) {
    layout.is_tensor_shard = divides_experts();
  } else if (local_name.starts_with("shared_expert.")) {
    layout.is_tensor_shard = parallel_.tensor.size() > 1;
  } else {
    layout.is_sequence_partial = parallel_.sequence_parallel && parallel_.tensor.size() > 1;
  }
  return layout;
}

Tensors MoeMlp::with_passing(const Tensors& list, const Tensors& dispatchers) const {
  Tensors result(list.begin(), list.begin() + num_passing());
  result.insert(result.end(), dispatchers.begin(), dispatchers.end());
  return result;
}

ModelPhase MoeMlp::counts_phase(const std::string& name) {
  ModelPhase phase;
  phase.name = name;
  phase.forward = 0.05;  // Latency alone.
  phase.exchange = [this](const Tensors& list, PhaseState&) {
    return between(with_passing(list, {}), dispatcher_->exchange_counts(dispatchers(list)), {});
  };
  return phase;
}

ModelPhase MoeMlp::experts_phase(const std::string& name, double cost) {
  ModelPhase phase;
  phase.name = name;
  phase.forward = phase.backward_input = phase.backward_weight = cost;
  phase.compute = [this](const Tensors& list, PhaseState&) { return compute_experts(list); };
  return phase;
}

ModelPhase MoeMlp::exchange_phase(const std::string& name, double cost, Exchange forth, ExchangeBack back) {
  ModelPhase phase;
  phase.name = name;
  phase.forward = phase.backward_input = cost;
  phase.exchange = [this, forth](const Tensors& list, PhaseState& state) {
    return between(with_passing(list, {}), (dispatcher_.get()->*forth)(dispatchers(list), state.saved), {});
  };
  phase.exchange_back = [this, back](const Tensors& gradients, PhaseState& state) {
    return between(with_passing(gradients, {}), (dispatcher_.get()->*back)(dispatchers(gradients), state.saved), {});
  };
  return phase;
}

// What the ranks of a divided expert all work on.
at::Tensor MoeMlp::entered(const at::Tensor& x) const {
  return divides_experts() ? enter_tensor_region(x, parallel_) : x;
}

// A divided expert's output is one summand, like that of the others; else this is the whole output.
at::Tensor MoeMlp::shared_output(const at::Tensor& x) {
  return divides_experts() ? shared_expert_->forward(x)
                           : leave_tensor_region(shared_expert_->forward(enter_tensor_region(x, parallel_)), parallel_);
}

Tensors MoeMlp::compute_experts(const Tensors& list) {
  const Tensors arrived = dispatchers(list);
  const ExpertRows rows = dispatcher_->arrived(arrived);
  Tensors result = with_passing(list, dispatcher_->departing(arrived, rows, experts_->forward(rows)));
  if (shared_expert_) {
    result[1] = shared_output(list[1]);
  }
  return result;
}

}  // namespace pretrain_gpt
