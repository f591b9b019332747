#include "plugin/runtime/optimizer_hook.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "plugin/schedule/error.h"

namespace dualpipe {

namespace {

double checked_clip(double clip_grad) {
  if (clip_grad >= 0 && std::isfinite(clip_grad)) return clip_grad;
  throw ScheduleError("optimizer_hook",
                      fmt::format("clip_grad must be finite and at least 0 (no clipping), got {}; for "
                                  "example 1.0",
                                  clip_grad));
}

Pipeline& checked_pipeline(Pipeline& pipeline) {
  if (pipeline.reduces_mirrors()) return pipeline;
  throw ScheduleError("optimizer_hook",
                      "mirrors must sum their gradients before a step, got reduce_mirrors = false; leave "
                      "it true, or sum and step yourself");
}

// Outside of what the log calls a collective: most of it is a rank's own, and one that gets stuck is not to be taken
// for one that waits.
void clip_and_step(Pipeline& pipeline, torch::optim::Optimizer& optimizer, double norm, double clip_grad) {
  std::exception_ptr mistake;
  try {
    clip_gradients(pipeline.gradients(), norm, clip_grad);
    optimizer.step();
  } catch (...) {
    mistake = std::current_exception();
  }
  if (mistake) pipeline.guarded("optimizer step", [&] { std::rethrow_exception(mistake); });
}

}  // namespace

OptimizerHook::OptimizerHook(Pipeline& pipeline, torch::optim::Optimizer& optimizer, double clip_grad)
    : pipeline_(checked_pipeline(pipeline)),
      optimizer_(optimizer),
      clip_grad_(checked_clip(clip_grad)),
      norm_(pipeline.world(), pipeline.gradients(), pipeline.gradient_parts()) {}

OptimizerStep OptimizerHook::step(bool skip) {
  pipeline_.finish_gradients();
  OptimizerStep result;
  pipeline_.guarded("gradient norm", [&] { result.grad_norm = norm_.compute(pipeline_.gradients()); });
  result.skipped = skip || !std::isfinite(result.grad_norm);
  if (result.skipped) {
    result.first_bad = pipeline_.find_non_finite();
  } else {
    clip_and_step(pipeline_, optimizer_, result.grad_norm, clip_grad_);
  }
  return result;
}

}  // namespace dualpipe
