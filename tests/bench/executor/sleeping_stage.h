// tests/bench/executor/sleeping_stage.h
//
// A stage whose F, I and W sleep, and whose overlapped pairs are one sleep by a hook.
#pragma once

#include "plugin/runtime/stage_module.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {

class SleepingStage : public StageModule {
 public:
  // `sleeper` outlives the stage.
  explicit SleepingStage(Sleeper& sleeper);

  // One tensor, to one of its shape.
  TensorList forward(const TensorList& inputs) override;
  OverlapHook overlapped_forward_backward() override;

 private:
  Sleeper& sleeper_;
  at::Tensor weight_;
};

}  // namespace dualpipe::bench
