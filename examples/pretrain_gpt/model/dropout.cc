#include "examples/pretrain_gpt/model/dropout.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "examples/pretrain_gpt/model/random_stream.h"

namespace pretrain_gpt {

at::Tensor Dropout::apply(const at::Tensor& x, double p, const ForwardPass& pass, std::string_view position,
                          int part) const {
  if (p == 0 || !pass.is_training) {
    return x;
  }
  const std::string name = fmt::format("dropout.{}.{}.{}.{}.{}", pass.step, layer_, pass.micro_batch, position, part);
  const at::Tensor kept =
      at::empty(x.sizes(), x.options().dtype(at::kBool)).bernoulli_(1 - p, random_stream(seed_, name, x.device()));
  return x * kept * (1 / (1 - p));
}

}  // namespace pretrain_gpt
