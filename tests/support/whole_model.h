// tests/support/whole_model.h
//
// The slow, obvious oracle: all stages in one process, one micro-batch after another, one plain backward of the global
// loss (plugin/runtime/criterion.h). Knows nothing of schedules, messages or split backwards.
#pragma once

#include <memory>
#include <vector>

#include "plugin/runtime/criterion.h"
#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

struct WholeModelResult {
  std::vector<at::Tensor> losses;  // By micro-batch: its mean, detached.
  double global_loss = 0;
  MicroBatches outputs;  // By micro-batch: of the last stage, detached.
};

// `stages` in stage order. Gradients are added to `.grad` of parameters and of inputs that require grad; without any of
// them, or under NoGradGuard, there is no backward.
WholeModelResult run_whole_model(const std::vector<std::shared_ptr<StageModule>>& stages, const MicroBatches& inputs,
                                 const MicroBatches& labels, const Criterion& criterion);

}  // namespace dualpipe
