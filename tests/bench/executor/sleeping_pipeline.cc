#include "tests/bench/executor/sleeping_pipeline.h"

#include <ATen/ops/zeros.h>

#include "plugin/analysis/simulate.h"
#include "tests/bench/executor/sleeping_stage.h"

namespace dualpipe::bench {
namespace {

Schedule schedule_of(const Work& work, int ranks) {
  return builtin_registry().make(work.schedule, {ranks, work.num_microbatches});
}

std::vector<std::shared_ptr<StageModule>> make_stages(std::size_t count, Sleeper& sleeper) {
  std::vector<std::shared_ptr<StageModule>> stages;
  while (stages.size() < count) stages.push_back(std::make_shared<SleepingStage>(sleeper));
  return stages;
}

// Inputs that train: the first stage has an I like the others.
TensorList input_of(std::int64_t bytes) {
  const auto values = bytes / static_cast<std::int64_t>(sizeof(float));
  return {at::zeros({1, values}).requires_grad_(true)};
}

}  // namespace

CostModel cost_of(const Pace& pace, Milliseconds latency) {
  const double backward_input = pace.backward_input.count(), backward_weight = pace.backward_weight.count();
  return {.uniform = {pace.forward.count(), backward_input, backward_weight, pace.overlapped.count()},
          .per_stage = {},
          .latency = latency.count()};
}

Milliseconds ideal(const Work& work, int ranks, Milliseconds latency) {
  return Milliseconds(simulate(schedule_of(work, ranks), cost_of(work.pace, latency)).makespan());
}

SleepingPipeline::SleepingPipeline(const Work& work, std::shared_ptr<Transport> transport)
    : sleeper_(std::make_unique<Sleeper>()),
      criterion_([](const TensorList& outputs, const TensorList&) { return outputs[0].sum(); }) {
  const std::vector<int> stages = schedule_of(work, transport->size()).placement.stages_of(transport->rank());
  pipeline_ = std::make_unique<Pipeline>(work.schedule, transport, make_stages(stages.size(), *sleeper_),
                                         PipelineOptions{.num_microbatches = work.num_microbatches});
  inputs_.assign(pipeline_->input_micro_batches().size(), input_of(work.bytes));
  labels_.resize(pipeline_->loss_micro_batches().size());
  rehearse();  // Agrees on shapes.
  sleeper_->pace = work.pace;
}

void SleepingPipeline::rehearse() {
  sleeper_->rehearses = true;
  step();
  sleeper_->rehearses = false;
}

StepResult SleepingPipeline::step() { return pipeline_->step(inputs_, labels_, criterion_); }

}  // namespace dualpipe::bench
