// examples/pretrain_gpt/optimizer_state.h
//
// The state that an optimizer has of a rank's parameters, parameter by parameter, to be read and written in place.
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <vector>

namespace pretrain_gpt {

// Of elements [from, from + count) of `parameter` laid out as a row. A rank with a part of a parameter's state has one
// of these with that part; with none of it, none.
struct ParameterState {
  at::Tensor parameter;
  std::int64_t from = 0, count = 0;
  // [count] each, in the optimizer's own memory. master: undefined where the parameter is what is stepped.
  at::Tensor master, exp_avg, exp_avg_sq;
  torch::optim::AdamWParamState* adamw = nullptr;  // Has the number of steps; parameters may share one.
};

// Of what make_optimizer() makes. State that there is none of yet is made, as the first step would. Valid as long as
// the optimizer, and until its load().
std::vector<ParameterState> parameter_states(torch::optim::Optimizer& optimizer);

// Zeros where there was none.
torch::optim::AdamWParamState& adamw_state(torch::optim::Optimizer& adamw, const at::Tensor& parameter);

}  // namespace pretrain_gpt
