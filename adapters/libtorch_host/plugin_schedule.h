// adapters/libtorch_host/plugin_schedule.h
//
// A schedule of the plugin as the trainer's forward-backward function: divides the layers into the stages that the
// schedule's placement asks for (for DualPipe mirrored pairs of chunks), feeds the micro-batches that enter at this
// rank, and installs the optimizer-step hook.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapters/libtorch_host/gpt_stage.h"
#include "adapters/libtorch_host/watch.h"
#include "examples/pretrain_gpt/forward_backward.h"
#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/optimizer_hook.h"

namespace dualpipe::libtorch_host {

// The spec that a configuration asks for.
ScheduleSpec spec_of(const pretrain_gpt::Config& config, int world_size);

// Throws where the schedule's rule or the division of layers does not suit the configuration.
void validate(const std::string& schedule, const pretrain_gpt::Config& config, int world_size,
              const Registry& registry = builtin_registry());

// Whether pipeline ranks r and P-1-r hold the same stages.
bool mirrors_stages(const std::string& schedule, const pretrain_gpt::Config& config, int world_size,
                    const Registry& registry = builtin_registry());

class PluginSchedule : public pretrain_gpt::ForwardBackward {
 public:
  PluginSchedule(const std::string& schedule, const pretrain_gpt::TrainContext& context,
                 const Registry& registry = builtin_registry());

  double train_step(const pretrain_gpt::ReadMicroBatch& read) override;
  double evaluate(const pretrain_gpt::ReadMicroBatch& read) override;
  pretrain_gpt::StepOutcome optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad, bool skip) override;
  std::vector<pretrain_gpt::GptChunk*> chunks() override;
  pretrain_gpt::NamedTensors main_gradients() const override { return main_gradients_; }
  std::vector<std::int64_t> peak_micro_batches() const override;
  std::optional<std::string> recorded_actions() const override;
  std::optional<pretrain_gpt::StepTrace> trace() const override;
  const pretrain_gpt::ActivityLog* activity() const override { return &activity_; }
  std::vector<std::string> notes() const override;

  Pipeline& pipeline() { return *pipeline_; }
  const StepStatistics& statistics() const { return pipeline_->statistics(); }  // Of the last training step.

 private:
  MicroBatches inputs(const pretrain_gpt::ReadMicroBatch& read) const;
  MicroBatches labels(const pretrain_gpt::ReadMicroBatch& read) const;

  std::function<std::int64_t()> live_bytes(const pretrain_gpt::TrainContext& context) const;

  bool record_actions_, record_timeline_, shows_exchanges_;
  std::vector<int> numbers_;  // The run's, of the pipeline's ranks.
  std::shared_ptr<RingLog> log_;
  RingActivity activity_;
  std::vector<std::shared_ptr<GptStage>> stages_;
  std::vector<std::int64_t> peak_micro_batches_;
  pretrain_gpt::NamedTensors main_gradients_;
  Criterion criterion_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<OptimizerHook> hook_;
  std::pair<torch::optim::Optimizer*, double> hooked_for_{};  // What the hook was made with.
};

}  // namespace dualpipe::libtorch_host
