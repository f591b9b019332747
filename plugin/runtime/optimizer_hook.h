// plugin/runtime/optimizer_hook.h
//
// What has to happen before an optimizer's step() under a pipeline: run the weight gradients that were put off, finish
// the reductions, compute one global norm, clip, and skip the step on every rank if anything is not finite.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/gradient_norm.h"

namespace dualpipe {

struct OptimizerStep {
  double grad_norm = 0;  // Before clipping; equal bits on every rank.
  bool skipped = false;  // Some gradient is NaN or infinite, or the caller said so; nothing has changed, anywhere.
  std::optional<NonFinite> first_bad = {};  // Of a step that was not finite, where somebody saw it begin.
};

class OptimizerHook {
 public:
  // Collective. `optimizer` may have no parameters. Both outlive the hook. Throws ScheduleError where clip_grad is
  // negative or not finite, and where mirrors keep their own halves (reduce_mirrors false): they would step apart.
  OptimizerHook(Pipeline& pipeline, torch::optim::Optimizer& optimizer, double clip_grad = 0);
  // Collective, once per training step. Does not zero gradients. clip_grad 0 clips nothing. With `skip`, the same on
  // every rank (of a loss that is not finite, say), gradients become final and nothing else changes.
  OptimizerStep step(bool skip = false);

 private:
  Pipeline& pipeline_;
  torch::optim::Optimizer& optimizer_;
  double clip_grad_;
  GradientNorm norm_;
};

}  // namespace dualpipe
