#include "examples/pretrain_gpt/model/rotary.h"

#include <ATen/ATen.h>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {

Rotary::Rotary(const Config& config) {
  const std::int64_t head_size = config.hidden_size / config.num_attention_heads;
  const at::Tensor exponent = at::arange(0, head_size, 2, at::kDouble) / static_cast<double>(head_size);
  const at::Tensor frequency = at::pow(config.rotary_base, -exponent);
  const at::Tensor angle = at::outer(at::arange(config.seq_length, at::kDouble), frequency);
  cos_ = angle.cos().to(params_dtype(config));
  sin_ = angle.sin().to(params_dtype(config));
}

at::Tensor Rotary::apply(const at::Tensor& x) const {
  const std::int64_t length = x.size(2);
  const std::int64_t half = x.size(3) / 2;
  const at::Tensor cos = cos_.narrow(0, 0, length);
  const at::Tensor sin = sin_.narrow(0, 0, length);
  const at::Tensor first = x.narrow(3, 0, half);
  const at::Tensor second = x.narrow(3, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, 3);
}

}  // namespace pretrain_gpt
