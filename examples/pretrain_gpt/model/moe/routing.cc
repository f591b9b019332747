#include "examples/pretrain_gpt/model/moe/routing.h"

#include <ATen/ATen.h>

namespace pretrain_gpt {

at::Tensor count_choices(const at::Tensor& experts, std::int64_t num_experts) {
  const at::Tensor choices = experts.flatten();
  return at::zeros(num_experts, choices.options()).scatter_add_(0, choices, at::ones_like(choices));
}

}  // namespace pretrain_gpt
