#include "plugin/runtime/overlap.h"

#include <fmt/format.h>

#include <algorithm>

namespace dualpipe {

std::optional<std::string> why_no_hook(const HookOffer& module0, const HookOffer& module1) {
  const auto [low, high] = std::minmax(module0.stage, module1.stage);
  if (!module0.offers && !module1.offers) {
    return fmt::format("stages {} and {} offer no overlapped_forward_backward", low, high);
  }
  if (!module0.offers || !module1.offers) {
    return fmt::format("stage {} offers no overlapped_forward_backward",
                       module0.offers ? module1.stage : module0.stage);
  }
  if (module0.module.hook_type() != module1.module.hook_type()) {
    return fmt::format("stages {} and {} are of different types", low, high);
  }
  return std::nullopt;
}

void run_in_sequence(PairIo& pair) {
  pair.run_forward();
  pair.run_backward();
}

void run_by_hook(PairIo& pair, const OverlapHook& hook) {
  const at::Tensor loss1 = pair.loss1();
  auto [outputs0, loss0] = hook(pair.module0(), pair.inputs0(), pair.criterion0(), pair.labels0(), pair.module1(),
                                loss1, pair.outputs1(), pair.output_grads1());
  pair.finish_forward(std::move(outputs0), std::move(loss0));
  TensorList input_grads;
  for (const at::Tensor& input : pair.inputs1()) {
    input_grads.push_back(input.defined() ? input.grad() : at::Tensor());
  }
  pair.finish_backward(std::move(input_grads));
}

}  // namespace dualpipe
