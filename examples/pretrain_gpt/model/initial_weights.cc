#include "examples/pretrain_gpt/model/initial_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/model/random_stream.h"

namespace pretrain_gpt {
namespace {

// Blocks of the divided dimension are split one by one.
at::Tensor part_of(const at::Tensor& whole, const WeightPart& part) {
  const std::int64_t size = part_size(whole.size(part.dimension), part.blocks * part.count);
  at::Tensor blocks = whole.unflatten(part.dimension, {part.blocks, part.count * size});
  return blocks.narrow(part.dimension + 1, part.index * size, size).flatten(part.dimension, part.dimension + 1);
}

}  // namespace

at::ScalarType params_dtype(const Config& config) {
  return config.params_dtype == "float64"    ? at::kDouble
         : config.params_dtype == "bfloat16" ? at::kBFloat16
                                             : at::kFloat;
}

std::int64_t part_size(std::int64_t size, std::int64_t parts) {
  if (size % parts != 0) {
    throw UserError("model", fmt::format("a dimension that is divided over ranks must be a multiple of the parts = {}, "
                                         "got {}; for example {}",
                                         parts, size, (size / parts + 1) * parts));
  }
  return size / parts;
}

at::Tensor normal_weight(const Config& config, const std::string& logical_name, at::IntArrayRef shape, double std,
                         const WeightPart& part) {
  const at::Tensor whole = at::empty(shape, at::kDouble).normal_(0, std, random_stream(config.seed, logical_name));
  return part_of(whole, part)
      .to(params_dtype(config), /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous)
      .requires_grad_();
}

at::Tensor ones_weight(const Config& config, at::IntArrayRef shape) {
  return at::ones(shape, params_dtype(config)).requires_grad_();
}

double residual_std(const Config& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

}  // namespace pretrain_gpt
