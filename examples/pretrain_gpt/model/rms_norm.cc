#include "examples/pretrain_gpt/model/rms_norm.h"

#include <ATen/ATen.h>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {

RmsNorm::RmsNorm(const Config& config)
    : weight_(register_parameter("weight", ones_weight(config, {config.hidden_size}))), epsilon_(config.norm_epsilon) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) { return at::rms_norm(x, weight_.sizes(), weight_, epsilon_); }

}  // namespace pretrain_gpt
