#include "plugin/runtime/optimizer_hook.h"

#include <cmath>

namespace dualpipe {

OptimizerHook::OptimizerHook(Pipeline& pipeline, torch::optim::Optimizer& optimizer, double clip_grad)
    : pipeline_(pipeline),
      optimizer_(optimizer),
      clip_grad_(clip_grad),
      norm_(pipeline.transport(), pipeline.gradients()) {}

OptimizerStep OptimizerHook::step() {
  pipeline_.finish_gradients();
  OptimizerStep result;
  pipeline_.guarded("optimizer step", [&] {
    result.grad_norm = norm_.compute(pipeline_.gradients());
    result.skipped = !std::isfinite(result.grad_norm);
    if (result.skipped) return;
    clip_gradients(pipeline_.gradients(), result.grad_norm, clip_grad_);
    optimizer_.step();
  });
  return result;
}

}  // namespace dualpipe
