#include "examples/pretrain_gpt/model/moe/auxiliary_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace pretrain_gpt {
namespace {

struct WithLoss : torch::autograd::Function<WithLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& loss,
                            double scale) {
    context->saved_data["gradient"] = at::full_like(loss, scale);
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], context->saved_data.at("gradient").toTensor(), {}};
  }
};

}  // namespace

at::Tensor load_balancing_loss(const at::Tensor& scores, const at::Tensor& counts, std::int64_t tokens) {
  const at::Tensor sums = scores.flatten(0, -2).sum(0);
  const at::Tensor shares = counts.to(scores.scalar_type()) / counts.sum();
  return (shares * sums).sum() * (static_cast<double>(counts.size(0)) / static_cast<double>(tokens));
}

at::Tensor with_loss(const at::Tensor& x, const at::Tensor& loss, double scale) {
  return WithLoss::apply(x, loss, scale);
}

}  // namespace pretrain_gpt
