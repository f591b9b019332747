#include "examples/pretrain_gpt/model/moe/gather_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace pretrain_gpt {
namespace {

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& inverse, std::int64_t copies) {
    context->save_for_backward({inverse});
    context->saved_data["copies"] = copies;
    return x.index_select(0, copies == 1 ? order : order.floor_divide(copies));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::int64_t copies = context->saved_data.at("copies").toInt();
    at::Tensor gradient = gradients[0].index_select(0, context->get_saved_variables()[0]);
    if (copies != 1) {
      gradient = gradient.view({gradient.size(0) / copies, copies, gradient.size(1)}).sum(1);
    }
    return {gradient, {}, {}, {}};
  }
};

}  // namespace

at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse, std::int64_t copies) {
  return GatherRows::apply(x, order, inverse, copies);
}

}  // namespace pretrain_gpt
