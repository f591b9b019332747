// tests/bench/executor/sleeping_pipeline.h
//
// The engine over stages that sleep: what one rank runs, and what the simulator says of it.
#pragma once

#include <memory>
#include <string>

#include "plugin/analysis/cost_model.h"
#include "plugin/runtime/dualpipe.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {

struct Work {
  std::string schedule;
  int num_microbatches = 0;
  std::int64_t bytes = 0;  // Of one message.
  Pace pace;
};

CostModel cost_of(const Pace& pace, Milliseconds latency);
// Of a step where nothing is lost.
Milliseconds ideal(const Work& work, int ranks, Milliseconds latency);

class SleepingPipeline {
 public:
  // Collective over the transport's ranks; so is step().
  SleepingPipeline(const Work& work, std::shared_ptr<Transport> transport);

  StepResult step();
  void rehearse();  // A step that does not sleep.
  const Pipeline& pipeline() const { return *pipeline_; }
  const StepStatistics& statistics() const { return pipeline_->statistics(); }
  Overshoot& overshoot() { return sleeper_->overshoot; }

 private:
  std::unique_ptr<Sleeper> sleeper_;  // Its stages know where it is.
  std::unique_ptr<Pipeline> pipeline_;
  Criterion criterion_;
  MicroBatches inputs_;
  MicroBatches labels_;
};

}  // namespace dualpipe::bench
