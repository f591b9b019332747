#include "plugin/runtime/overlap.h"

#include <fmt/format.h>

#include <typeinfo>

namespace dualpipe {

std::optional<std::string> why_no_hook(StageModule& module0, int stage0, StageModule& module1, int stage1) {
  const bool first = static_cast<bool>(module0.overlapped_forward_backward());
  const bool second = static_cast<bool>(module1.overlapped_forward_backward());
  if (!first && !second) {
    return fmt::format("stages {} and {} offer no overlapped_forward_backward", std::min(stage0, stage1),
                       std::max(stage0, stage1));
  }
  if (!first || !second) return fmt::format("stage {} offers no overlapped_forward_backward", first ? stage1 : stage0);
  if (typeid(module0) != typeid(module1)) {
    return fmt::format("stages {} and {} are of different types", std::min(stage0, stage1), std::max(stage0, stage1));
  }
  return std::nullopt;
}

void run_in_sequence(PairIo& pair) {
  pair.run_forward();
  pair.run_backward();
}

void run_by_hook(PairIo& pair) {
  const OverlapHook hook = pair.module0().overlapped_forward_backward();
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
