#include "adapters/libtorch_host/plugin_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

#include "adapters/libtorch_host/parallel.h"
#include "adapters/libtorch_host/step_trace.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::libtorch_host {
namespace {

// Phases serve the overlap of expert communication, recompute, and timelines that show layers.
bool runs_by_phases(const pretrain_gpt::Config& config) {
  return (config.num_experts > 0 && config.overlap_moe_expert_parallel_comm) ||
         config.recompute_granularity != "none" || config.record_phases;
}

pretrain_gpt::StagePlaces places_of(const Placement& placement) {
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const std::vector<int> stages = placement.stages_of(rank);
    const bool is_folded = stages.size() == 2 && stages[0] + stages[1] == placement.stages() - 1;
    if (!is_folded) return pretrain_gpt::StagePlaces::kApart;
  }
  return pretrain_gpt::StagePlaces::kFolded;
}

std::vector<pretrain_gpt::Chunk> divide(const pretrain_gpt::Config& config, const Placement& placement) {
  return pretrain_gpt::divide_layers(config, placement.stages(), places_of(placement));
}

// In module order. Where a rank holds both ends of a model whose head is tied, the second uses the first one's weight.
std::vector<std::shared_ptr<GptStage>> build_stages(const Placement& placement,
                                                    const pretrain_gpt::TrainContext& context) {
  const pretrain_gpt::Config& config = context.config;
  const pretrain_gpt::ProcessGroups& groups = context.parallel;
  const pretrain_gpt::ModelParallel parallel = groups.model_parallel(config.sequence_parallel);
  const MicroBatchCount count{groups.layout().data_rank(groups.rank()), config.data_parallel_size};
  const std::vector<pretrain_gpt::Chunk> division = divide(config, placement);
  std::vector<std::shared_ptr<GptStage>> stages;
  at::Tensor tied;
  for (int stage : placement.stages_of(context.rank)) {
    auto chunk = std::make_shared<pretrain_gpt::GptChunk>(config, parallel, division.at(stage), tied);
    if (!config.untie_embeddings_and_output_weights && !tied.defined()) tied = chunk->embedding_weight();
    stages.push_back(std::make_shared<GptStage>(std::move(chunk), count, runs_by_phases(config)));
  }
  return stages;
}

// By stage: micro-batches between F and B (or W) where the row has most of them.
std::vector<std::int64_t> peak_by_stage(const Row& row, const std::vector<int>& stages) {
  std::map<int, std::int64_t> live, peak;
  std::int64_t sum = 0, most = 0;
  const auto run = [&](const Op& op) {
    const bool begins = op.kind == Kind::kForward;
    const bool ends = op.kind == Kind::kBackward || op.kind == Kind::kBackwardWeight;
    live[op.stage] += begins - ends;
    sum += begins - ends;
    if (sum <= most) return;
    most = sum;
    peak = live;
  };
  for (const Action& action : row) {
    run(action.op);
    if (action.paired) run(*action.paired);
  }
  std::vector<std::int64_t> by_stage;
  for (const int stage : stages) by_stage.push_back(peak[stage]);
  return by_stage;
}

PipelineOptions options_of(const pretrain_gpt::Config& config) {
  PipelineOptions options;
  options.num_microbatches = static_cast<int>(config.num_microbatches());
  options.virtual_pipeline_model_parallel_size = spec_of(config, 1).virtual_pipeline_model_parallel_size;
  options.overlap_phases = config.overlap_moe_expert_parallel_comm;
  options.variable_seq_lengths = config.variable_seq_lengths;
  options.defer_tail_weight_gradients = config.defer_tail_weight_gradients;
  options.mean_loss_on_every_rank = true;
  options.timeout = pretrain_gpt::transport_timeout(config);
  options.check_finite = config.check_for_nan_in_loss_and_grad;
  return options;
}

// The trainer's group for the copies of a tied embedding has the first and the last rank of each pipeline.
void check_ends(const std::string& schedule, const pretrain_gpt::Config& config, const Placement& placement) {
  const int first = placement.input_rank(0), last = placement.loss_rank(0), end = placement.ranks() - 1;
  const bool has_groups = config.data_parallel_size * config.tensor_model_parallel_size > 1;
  if (!has_groups || config.untie_embeddings_and_output_weights || first == last) return;
  if (std::min(first, last) == 0 && std::max(first, last) == end) return;
  throw ScheduleError(schedule,
                      fmt::format("the first and the last stage must be on ranks 0 and {} where a tied embedding "
                                  "is summed over data- or tensor-parallel ranks too, got ranks {} and {}; for "
                                  "example untie_embeddings_and_output_weights: true",
                                  end, first, last));
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

void validate(const std::string& schedule, const pretrain_gpt::Config& config, int world_size,
              const Registry& registry) {
  const Schedule plan = registry.make(schedule, spec_of(config, world_size));
  const std::vector<Violation> violations = dualpipe::validate(plan);
  if (!violations.empty()) throw ScheduleError(schedule, explain(plan, violations.front()));
  check_ends(schedule, config, plan.placement);
  divide(config, plan.placement);
}

bool mirrors_stages(const std::string& schedule, const pretrain_gpt::Config& config, int world_size,
                    const Registry& registry) {
  return registry.make(schedule, spec_of(config, world_size)).placement.is_bidirectional();
}

PluginSchedule::PluginSchedule(const std::string& schedule, const pretrain_gpt::TrainContext& context,
                               const Registry& registry)
    : record_actions_(context.config.record_actions),
      record_timeline_(context.config.record_timeline > 0),
      shows_exchanges_(context.config.num_experts == 0 || runs_by_phases(context.config)),
      numbers_(context.parallel.layout().group_of(pretrain_gpt::GroupKind::kPipeline, context.parallel.rank())),
      log_(std::make_shared<RingLog>(context.parallel.rank(), context.parallel.world_size(), numbers_)),
      activity_(log_),
      criterion_(gpt_criterion(context.parallel.model_parallel(context.config.sequence_parallel).tensor)) {
  const Schedule plan = registry.make(schedule, spec_of(context.config, context.world_size));
  peak_micro_batches_ = peak_by_stage(plan.rows.at(context.rank), plan.placement.stages_of(context.rank));
  stages_ = build_stages(plan.placement, context);
  main_gradients_ = pretrain_gpt::make_main_gradients(context.config, chunks());
  PipelineOptions options = options_of(context.config);
  options.registry = registry;
  options.ring_log = log_;
  options.live_bytes = live_bytes(context);
  options.main_grads = main_gradients_;
  options.parallel = parallel_groups(context.parallel, stages_, !context.config.untie_embeddings_and_output_weights);
  pipeline_ = std::make_unique<Pipeline>(schedule, context.group,
                                         std::vector<std::shared_ptr<StageModule>>(stages_.begin(), stages_.end()),
                                         std::move(options));
}

// Without gradients, which grow as well: the rest of what grows in a step are activations.
std::function<std::int64_t()> PluginSchedule::live_bytes(const pretrain_gpt::TrainContext& context) const {
  if (!record_timeline_ || !context.memory) return {};
  return [this, memory = context.memory] {
    return memory->in_use() - static_cast<std::int64_t>(pipeline_->gradients().bytes());
  };
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
  const MicroBatches given = inputs(read), wanted = labels(read);
  return for_trainer(numbers_, [&] { return *pipeline_->step(given, wanted, criterion_).mean_loss; });
}

double PluginSchedule::evaluate(const pretrain_gpt::ReadMicroBatch& read) {
  const MicroBatches given = inputs(read), wanted = labels(read);
  return for_trainer(numbers_, [&] { return *pipeline_->evaluate(given, wanted, criterion_, false).mean_loss; });
}

pretrain_gpt::StepOutcome PluginSchedule::optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad,
                                                         bool skip) {
  const std::pair hooked_for(&optimizer, clip_grad);
  if (!hook_ || hooked_for_ != hooked_for) hook_ = std::make_unique<OptimizerHook>(*pipeline_, optimizer, clip_grad);
  hooked_for_ = hooked_for;
  const OptimizerStep step = for_trainer(numbers_, [&] {
    const RingScope logged(*log_, RingKind::kCompute, "the optimizer step");  // But for what it waits for.
    return hook_->step(skip);
  });
  return {step.grad_norm, step.skipped, step.first_bad ? std::optional(step.first_bad->to_string()) : std::nullopt};
}

std::vector<pretrain_gpt::GptChunk*> PluginSchedule::chunks() {
  std::vector<pretrain_gpt::GptChunk*> chunks;
  for (const auto& stage : stages_) chunks.push_back(&stage->chunk());
  return chunks;
}

std::vector<std::int64_t> PluginSchedule::peak_micro_batches() const { return peak_micro_batches_; }

std::optional<std::string> PluginSchedule::recorded_actions() const {
  if (!record_actions_) return std::nullopt;
  Row row;
  for (const Span& span : statistics().spans) row.push_back(span.action);
  return print_row(row);
}

std::optional<pretrain_gpt::StepTrace> PluginSchedule::trace() const {
  if (!record_timeline_) return std::nullopt;
  pretrain_gpt::StepTrace trace = trace_of(statistics());
  trace.has_all_exchanges = shows_exchanges_;
  return trace;
}

std::vector<std::string> PluginSchedule::notes() const {
  constexpr std::string_view kOrigin = "last step, on this rank: ";
  const StepStatistics& step = statistics();
  std::vector<std::string> notes;
  if (step.overlapped_pairs > 0 || !step.sequential_pairs.empty()) {
    notes.push_back(fmt::format("{}{}", kOrigin, step.overlap_summary()));
  }
  if (std::any_of(step.phases.begin(), step.phases.end(), [](const PhaseSpan& span) { return span.communication; })) {
    notes.push_back(fmt::format("{}waited {:.1f} ms for exchanges", kOrigin, step.exchange_wait_seconds * 1e3));
  }
  return notes;
}

}  // namespace dualpipe::libtorch_host
