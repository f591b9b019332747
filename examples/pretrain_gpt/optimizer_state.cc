#include "examples/pretrain_gpt/optimizer_state.h"

#include <ATen/ATen.h>

#include <memory>

#include "examples/pretrain_gpt/distributed_optimizer.h"

namespace pretrain_gpt {

torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& adamw, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& state = adamw.state()[parameter.unsafeGetTensorImpl()];
  if (!state) {
    auto zeros = std::make_unique<torch::optim::AdamWParamState>();
    zeros->step(0);
    zeros->exp_avg(at::zeros_like(parameter.detach()));
    zeros->exp_avg_sq(at::zeros_like(parameter.detach()));
    state = std::move(zeros);
  }
  return static_cast<torch::optim::AdamWParamState&>(*state);
}

std::vector<ParameterState> parameter_states(torch::optim::Optimizer& optimizer) {
  if (auto* distributed = dynamic_cast<DistributedOptimizer*>(&optimizer)) {
    return distributed->parameter_states();
  }
  std::vector<ParameterState> states;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      torch::optim::AdamWParamState& state = adamw_state(optimizer, parameter);
      states.push_back(
          {parameter, 0, parameter.numel(), {}, state.exp_avg().view({-1}), state.exp_avg_sq().view({-1}), &state});
    }
  }
  return states;
}

}  // namespace pretrain_gpt
