#include "adapters/libtorch_host/plugin_schedule.h"

#include <chrono>
#include <utility>

#include "examples/pretrain_gpt/layer_division.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::libtorch_host {
namespace {

// In module order. Where a rank holds both ends of a model whose head is tied, the second uses the first one's weight.
std::vector<std::shared_ptr<GptStage>> build_stages(const Placement& placement, const pretrain_gpt::Config& config,
                                                    int rank) {
  const std::vector<pretrain_gpt::Chunk> division = pretrain_gpt::divide_layers(config, placement.stages());
  std::vector<std::shared_ptr<GptStage>> stages;
  at::Tensor tied;
  for (int stage : placement.stages_of(rank)) {
    auto chunk = std::make_shared<pretrain_gpt::GptChunk>(config, division.at(stage), tied);
    if (!config.untie_embeddings_and_output_weights && !tied.defined()) tied = chunk->embedding_weight();
    stages.push_back(std::make_shared<GptStage>(std::move(chunk)));
  }
  return stages;
}

PipelineOptions options_of(const pretrain_gpt::Config& config) {
  PipelineOptions options;
  options.num_microbatches = static_cast<int>(config.num_microbatches());
  options.virtual_pipeline_model_parallel_size = spec_of(config, 1).virtual_pipeline_model_parallel_size;
  options.variable_seq_lengths = config.variable_seq_lengths;
  options.defer_tail_weight_gradients = config.defer_tail_weight_gradients;
  options.mean_loss_on_every_rank = true;
  options.timeout = std::chrono::seconds(config.timeout_s);
  return options;
}

}  // namespace

ScheduleSpec spec_of(const pretrain_gpt::Config& config, int world_size) {
  ScheduleSpec spec;
  spec.pipeline_model_parallel_size = world_size;
  spec.num_microbatches = static_cast<int>(config.num_microbatches());
  if (const auto chunks = config.virtual_pipeline_model_parallel_size) {
    spec.virtual_pipeline_model_parallel_size = static_cast<int>(*chunks);
  }
  return spec;
}

void validate(const std::string& schedule, const pretrain_gpt::Config& config, int world_size) {
  const Schedule plan = builtin_registry().make(schedule, spec_of(config, world_size));
  const std::vector<Violation> violations = dualpipe::validate(plan);
  if (!violations.empty()) throw ScheduleError(schedule, explain(plan, violations.front()));
  pretrain_gpt::divide_layers(config, plan.placement.stages());
}

PluginSchedule::PluginSchedule(const std::string& schedule, const pretrain_gpt::TrainContext& context)
    : record_actions_(context.config.record_actions), criterion_(gpt_criterion()) {
  const Placement placement = builtin_registry().make(schedule, spec_of(context.config, context.world_size)).placement;
  stages_ = build_stages(placement, context.config, context.rank);
  pipeline_ = std::make_unique<Pipeline>(schedule, context.group,
                                         std::vector<std::shared_ptr<StageModule>>(stages_.begin(), stages_.end()),
                                         options_of(context.config));
}

MicroBatches PluginSchedule::inputs(const pretrain_gpt::ReadMicroBatch& read) const {
  MicroBatches inputs;
  for (int k : pipeline_->input_micro_batches()) inputs.push_back({read.tokens(k)});
  return inputs;
}

MicroBatches PluginSchedule::labels(const pretrain_gpt::ReadMicroBatch& read) const {
  MicroBatches labels;
  for (int k : pipeline_->loss_micro_batches()) {
    pretrain_gpt::Targets targets = read.targets(k);
    labels.push_back({std::move(targets.labels), std::move(targets.loss_mask)});
  }
  return labels;
}

double PluginSchedule::train_step(const pretrain_gpt::ReadMicroBatch& read) {
  return *pipeline_->step(inputs(read), labels(read), criterion_).mean_loss;
}

double PluginSchedule::evaluate(const pretrain_gpt::ReadMicroBatch& read) {
  return *pipeline_->evaluate(inputs(read), labels(read), criterion_, false).mean_loss;
}

pretrain_gpt::StepOutcome PluginSchedule::optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad) {
  const std::pair hooked_for(&optimizer, clip_grad);
  if (!hook_ || hooked_for_ != hooked_for) hook_ = std::make_unique<OptimizerHook>(*pipeline_, optimizer, clip_grad);
  hooked_for_ = hooked_for;
  const OptimizerStep step = hook_->step();
  return {step.grad_norm, step.skipped};
}

std::vector<pretrain_gpt::GptChunk*> PluginSchedule::chunks() {
  std::vector<pretrain_gpt::GptChunk*> chunks;
  for (const auto& stage : stages_) chunks.push_back(&stage->chunk());
  return chunks;
}

std::optional<std::string> PluginSchedule::recorded_actions() const {
  if (!record_actions_) return std::nullopt;
  Row row;
  for (const Span& span : statistics().spans) row.push_back(span.action);
  return print_row(row);
}

std::vector<std::string> PluginSchedule::notes() const {
  if (statistics().overlapped_pairs == 0 && statistics().sequential_pairs.empty()) return {};
  return {"last step, on this rank: " + statistics().overlap_summary()};
}

}  // namespace dualpipe::libtorch_host
