#include "plugin/runtime/nn/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plugin/runtime/weight_grad_store.h"

namespace dualpipe::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Edge;

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight) {
  std::vector<std::int64_t> shape = grad.sizes().vec();
  shape.back() = weight.size(1);
  return as_rows(grad).mm(weight).view(shape);
}
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input) {
  return as_rows(grad).t().mm(as_rows(input));
}
at::Tensor bias_gradient(const at::Tensor& grad) { return as_rows(grad).sum(0); }

// What W has to do for one call of a layer. Leaves that get no gradient are undefined.
struct DeferredGradients {
  at::Tensor grad;
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;

  std::size_t bytes() const { return grad.nbytes() + (input.defined() ? input.nbytes() : 0); }

  // By way of the engine, so that hooks of the leaves see what they would see in a plain backward.
  void accumulate() const {
    std::vector<Edge> edges;
    TensorList gradients;
    const auto add = [&](const at::Tensor& leaf, at::Tensor gradient) {
      edges.push_back(torch::autograd::impl::gradient_edge(leaf));
      gradients.push_back(std::move(gradient));
    };
    const at::NoGradGuard no_grad;
    if (weight.defined()) add(weight, weight_gradient(grad, input));
    if (bias.defined()) add(bias, bias_gradient(grad));
    torch::autograd::Engine::get_default_engine().execute(edges, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  }
};

bool trains(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
bool is_deferrable(const at::Tensor& tensor) { return !trains(tensor) || tensor.is_leaf(); }

struct SplittingLinear : torch::autograd::Function<SplittingLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, WeightGradStore* store) {
    context->save_for_backward({trains(weight) ? input : at::Tensor(), weight, bias.value_or(at::Tensor())});
    context->saved_data["store"] = reinterpret_cast<std::int64_t>(store);
    context->set_materialize_grads(false);
    return at::linear(input, weight, bias);
  }

  static TensorList backward(AutogradContext* context, const TensorList& grads) {
    TensorList result(4);  // One per argument of forward().
    const at::Tensor& grad = grads[0];
    if (!grad.defined()) return result;
    const TensorList saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    const bool weight_now = context->needs_input_grad(1);
    const bool bias_now = bias.defined() && context->needs_input_grad(2);
    if (context->needs_input_grad(0)) result[0] = input_gradient(grad, weight);
    if (weight_now) result[1] = weight_gradient(grad, input);
    if (bias_now) result[2] = bias_gradient(grad);
    if (!weight_now && !bias_now) defer(*context, grad, input, weight, bias);
    return result;
  }

 private:
  // Where a weight is itself computed, the runtime runs this backward again in W.
  static void defer(AutogradContext& context, const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias) {
    auto* store = reinterpret_cast<WeightGradStore*>(context.saved_data["store"].toInt());
    if (!store->splitting() || !is_deferrable(weight) || !is_deferrable(bias)) return;
    if (!trains(weight) && !trains(bias)) return;
    DeferredGradients deferred{grad, trains(weight) ? input.detach() : at::Tensor(),
                               trains(weight) ? weight : at::Tensor(), trains(bias) ? bias : at::Tensor()};
    const std::size_t bytes = deferred.bytes();
    store->put([deferred = std::move(deferred)] { deferred.accumulate(); }, bytes);
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const std::optional<at::Tensor> given_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  WeightGradStore* store = WeightGradStore::current();
  // Autocast works on the operations that LibTorch's own layer is made of; the runtime splits these.
  if (!store || !at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(input.device().type())) {
    return at::linear(input, weight, given_bias);
  }
  return SplittingLinear::apply(input, weight, given_bias, store);
}

at::Tensor LinearImpl::forward(const at::Tensor& input) { return linear(input, weight, bias); }

}  // namespace dualpipe::nn
