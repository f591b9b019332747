#include <utility>

#include "plugin/runtime/pipeline_impl.h"
#include "plugin/runtime/replica_reduction.h"
#include "plugin/schedule/error.h"

namespace dualpipe {

Pipeline::Impl::Impl(std::string schedule, std::shared_ptr<Transport> over,
                     std::vector<std::shared_ptr<StageModule>> modules, PipelineOptions given)
    : name(std::move(schedule)),
      transport(std::move(over)),
      options(std::move(given)),
      replicas(options, transport),
      plan(empty_plan(name)) {
  std::optional<std::string> error;
  std::vector<StageParameter> parameters;
  try {
    plan = make_plan(name, transport->rank(), transport->size(), options);
    parameters = take_stages(std::move(modules));
  } catch (const std::exception& mistake) {
    error = mistake.what();
  }
  agree(*replicas.world(), digest_of(name, plan, options, transport->size()), error);
  build(std::move(parameters));
  failure = std::make_unique<FailurePath>(transport->rank(), replicas.numbers(), options.failures, options.on_fatal);
  if (!options.ring_log_folder.empty()) failure->keep(log, options.ring_log_folder);
  failure->watch([this](const std::string& why) { replicas.abort(why); });
}

// What can be refused without another rank.
std::vector<StageParameter> Pipeline::Impl::take_stages(std::vector<std::shared_ptr<StageModule>> modules) {
  const Placement& placement = plan.schedule.placement;
  const int rank = transport->rank();
  stages = pair_with_stages(plan.schedule, rank, std::move(modules));
  overlap = plan_overlap(plan.training.rows[rank], stages, placement.stages() - 1, options.overlap_phases);
  std::vector<StageParameter> parameters = collect_parameters(stages, plan.reduction_order, options.main_grads);
  const auto& shard_of = options.parallel.shard_of;
  for (StageParameter& parameter : parameters) parameter.shard = shard_of ? shard_of(parameter.name) : "";
  return parameters;
}

// Collective.
void Pipeline::Impl::build(std::vector<StageParameter> parameters) {
  const Placement& placement = plan.schedule.placement;
  replicas.connect(options, parameters, plan.reduction_order, !plan.loss_ids.empty(),
                   placement.mirror_of(transport->rank()));
  reduction = make_reduction(std::move(parameters));
  log = options.ring_log;
  if (!log) log = std::make_shared<RingLog>(replicas.world()->rank(), replicas.world()->size(), replicas.numbers());
  auto mailbox = std::make_shared<Mailbox>(transport, placement, options.variable_seq_lengths, log);
  executor = std::make_unique<Executor>(transport->rank(), placement, stages, std::move(overlap), std::move(mailbox),
                                        *gradients, *reduction, log);
  if (options.check_finite) executor->check_finite();
  executor->sample_memory_by(options.live_bytes);
  weights = make_weights();
}

// Over the host's groups, or with the mirror and with the other end.
std::unique_ptr<GradientReduction> Pipeline::Impl::make_reduction(std::vector<StageParameter> parameters) {
  if (replicas.layout()) {
    gradients = std::make_unique<Gradients>(std::move(parameters), /*set_aside=*/true);
    const auto note = [this](const ReplicaBucket& bucket) {
      reductions.push_back({bucket.elements, executor->statistics().spans.size()});
    };
    return watched(tied_reduction(transport, replicas.tied(),
                                  replica_reduction(replicas.layout(), {options.shard_gradients, note}),
                                  /*of_sums=*/true));
  }
  const std::optional<int> mirror = plan.schedule.placement.mirror_of(transport->rank());
  const bool reduces = mirror && options.reduce_mirrors;
  TiedParameters tied = find_tied(*transport, mirror, parameters);
  const bool sums = reduces || !tied.empty();
  gradients = std::make_unique<Gradients>(std::move(parameters), sums);
  if (mirror) check_mirrors(*transport, *mirror, *gradients);
  auto made =
      tied_reduction(transport, std::move(tied), reduces ? mirrored_reduction(transport, *mirror) : no_reduction());
  return sums ? watched(std::move(made)) : std::move(made);
}

std::unique_ptr<GradientReduction> Pipeline::Impl::watched(std::unique_ptr<GradientReduction> sums) {
  sums_gradients = true;
  if (!options.check_finite) return sums;
  auto made = std::make_unique<GradientWatch>(std::move(sums));
  watch = made.get();
  return made;
}

std::unique_ptr<LossWeights> Pipeline::Impl::make_weights() const {
  const bool computes_losses = !plan.loss_ids.empty();
  if (computes_losses && replicas.losses()) return std::make_unique<LossWeights>(replicas.losses());
  std::optional<int> other_end;
  if (plan.schedule.placement.is_bidirectional() && computes_losses)
    other_end = transport->size() - 1 - transport->rank();
  return std::make_unique<LossWeights>(transport, other_end);
}

void Pipeline::Impl::guarded(const std::function<std::string()>& action, const std::function<void()>& body) {
  failure->guarded(action, body);
}

StepResult Pipeline::Impl::guarded_run(const std::function<StepResult()>& body) {
  StepResult result;
  guarded([this] { return executor->current_action(); }, [&] { result = body(); });
  return result;
}

// The public face

Pipeline::Pipeline(const std::string& schedule, c10::intrusive_ptr<c10d::ProcessGroup> group,
                   std::vector<std::shared_ptr<StageModule>> stages, PipelineOptions options)
    : Pipeline(schedule, transport_for(schedule, std::move(group), options), std::move(stages), options) {}

Pipeline::Pipeline(const std::string& schedule, std::shared_ptr<Transport> transport,
                   std::vector<std::shared_ptr<StageModule>> stages, PipelineOptions options)
    : impl_(std::make_unique<Impl>(schedule, std::move(transport), std::move(stages), std::move(options))) {}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

StepResult Pipeline::step(const TensorList& inputs, const TensorList& labels, const Criterion& criterion,
                          bool return_outputs) {
  return impl_->guarded_run([&] { return impl_->run_split(inputs, labels, &criterion, true, return_outputs); });
}

StepResult Pipeline::step(const MicroBatches& inputs, const MicroBatches& labels, const Criterion& criterion,
                          bool return_outputs) {
  return impl_->guarded_run([&] { return impl_->run(inputs, labels, &criterion, true, return_outputs); });
}

StepResult Pipeline::evaluate(const TensorList& inputs, const TensorList& labels,
                              const std::optional<Criterion>& criterion, bool return_outputs) {
  const Criterion* given = criterion ? &*criterion : nullptr;
  return impl_->guarded_run([&] { return impl_->run_split(inputs, labels, given, false, return_outputs); });
}

StepResult Pipeline::evaluate(const MicroBatches& inputs, const MicroBatches& labels,
                              const std::optional<Criterion>& criterion, bool return_outputs) {
  const Criterion* given = criterion ? &*criterion : nullptr;
  return impl_->guarded_run([&] { return impl_->run(inputs, labels, given, false, return_outputs); });
}

void Pipeline::finish_gradients() {
  impl_->guarded([this] { return impl_->executor->current_action(); }, [this] { impl_->finish_gradients(); });
}

void Pipeline::guarded(const std::string& action, const std::function<void()>& body) {
  impl_->guarded([&] { return action; },
                 [&] {
                   const RingScope logged(*impl_->log, RingKind::kCollective, action);
                   body();
                 });
}

int Pipeline::rank() const { return impl_->transport->rank(); }
int Pipeline::size() const { return impl_->transport->size(); }
const std::string& Pipeline::schedule() const { return impl_->name; }
int Pipeline::num_microbatches() const { return impl_->plan.schedule.num_microbatches; }
int Pipeline::num_stages() const { return impl_->plan.schedule.placement.stages(); }
std::vector<int> Pipeline::stages() const { return impl_->plan.schedule.placement.stages_of(rank()); }
std::vector<int> Pipeline::input_micro_batches() const { return impl_->plan.input_ids; }
std::vector<int> Pipeline::loss_micro_batches() const { return impl_->plan.loss_ids; }
bool Pipeline::reduces_mirrors() const {
  return impl_->options.reduce_mirrors || !impl_->plan.schedule.placement.mirror_of(rank());
}
const StepStatistics& Pipeline::statistics() const { return impl_->statistics; }
const std::map<std::pair<int, int>, PairProgram>& Pipeline::pair_programs() const {
  return impl_->executor->overlap().programs;
}

const std::vector<StageParameter>& Pipeline::parameters() const { return impl_->gradients->parameters(); }
const Gradients& Pipeline::gradients() const { return *impl_->gradients; }
std::shared_ptr<Transport> Pipeline::transport() const { return impl_->transport; }
std::shared_ptr<Collectives> Pipeline::world() const { return impl_->replicas.world(); }
std::shared_ptr<const ReplicaLayout> Pipeline::replica_layout() const { return impl_->replicas.layout(); }
const std::vector<GradientPart>& Pipeline::gradient_parts() const { return impl_->replicas.parts(); }
const RingLog& Pipeline::ring_log() const { return *impl_->log; }

std::optional<NonFinite> Pipeline::find_non_finite() {
  std::optional<NonFinite> first;
  guarded("the search for what is not finite", [&] { first = impl_->find_non_finite(); });
  return first;
}

std::string Pipeline::pending_weight_gradients() const {
  return impl_->executor->store().empty() ? "" : impl_->executor->store().describe();
}

}  // namespace dualpipe
