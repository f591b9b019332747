#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "plugin/analysis/validate.h"
#include "plugin/runtime/agree.h"
#include "plugin/runtime/c10d_transport.h"
#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/executor.h"
#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/loss_weights.h"
#include "plugin/runtime/store_failure_channel.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr std::chrono::seconds kEchoPatience{2};  // How long a lost connection waits for the record that explains it.

void require_valid(const Schedule& schedule, const std::vector<Violation>& violations) {
  if (!violations.empty()) throw ScheduleError(schedule.name, explain(schedule, violations.front()));
}

Schedule make_schedule(const std::string& name, int ranks, const PipelineOptions& options) {
  if (options.num_microbatches < 1) {
    throw ScheduleError("pipeline",
                        fmt::format("num_microbatches must be at least 1, got {}", options.num_microbatches));
  }
  if (options.slots < 1)
    throw ScheduleError("pipeline", fmt::format("slots must be at least 1, got {}", options.slots));
  Schedule schedule =
      options.registry.make(name, {ranks, options.num_microbatches, options.virtual_pipeline_model_parallel_size});
  require_valid(schedule, validate(schedule));
  return schedule;
}

// What a rank runs, worked out from the schedule's name alone.
struct Plan {
  Schedule schedule;
  Program training;
  Program evaluation;
  std::vector<int> reduction_order;  // Of this rank's stages.
};

std::vector<int> reduction_order(const Program& program, int rank) {
  std::vector<int> order;
  for (const Action& action : program.rows[rank]) {
    if (action.op.kind == Kind::kReduceGrad) order.push_back(action.op.stage);
  }
  return order;
}

// The forwards in the order of a valid schedule wait for nothing but slots.
Program make_evaluation(const Schedule& schedule, const PipelineOptions& options) {
  const Schedule forwards = forward_only(schedule);
  if (const int least = least_slots(forwards); least > options.slots) {
    throw ScheduleError(schedule.name,
                        fmt::format("evaluation needs slots = {} at least, got {}", least, options.slots));
  }
  return lower(forwards, {.slots = options.slots, .reduce_grad = false});
}

Plan make_plan(const std::string& name, const Transport& transport, const PipelineOptions& options) {
  Schedule schedule = make_schedule(name, transport.size(), options);
  Program training =
      lower(schedule, {.slots = options.slots, .defer_tail_weight_gradients = options.defer_tail_weight_gradients});
  require_valid(schedule, validate(training, {.defer_tail_weight_gradients = options.defer_tail_weight_gradients}));
  Program evaluation = make_evaluation(schedule, options);
  // A program that defers W has no REDUCE_GRAD for their stages.
  std::vector<int> order = options.defer_tail_weight_gradients ? reduction_order(lower(schedule), transport.rank())
                                                               : reduction_order(training, transport.rank());
  return {std::move(schedule), std::move(training), std::move(evaluation), std::move(order)};
}

Stages pair_with_stages(const Plan& plan, int rank, std::vector<std::shared_ptr<StageModule>> modules) {
  const std::vector<int> stages = plan.schedule.placement.stages_of(rank);
  if (stages.size() != modules.size()) {
    throw ScheduleError(plan.schedule.name, fmt::format("needs one module per stage of the rank, stages {}, got {}",
                                                        fmt::join(stages, ", "), modules.size()));
  }
  Stages paired;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!modules[i]) throw ScheduleError(plan.schedule.name, fmt::format("the module of stage {} is null", stages[i]));
    paired.emplace_back(stages[i], std::move(modules[i]));
  }
  return paired;
}

Digest digest_of(const std::string& name, const Plan& plan, const PipelineOptions& options, int ranks) {
  std::ostringstream rows;
  print_rows(rows, plan.schedule.rows);
  return {{"torch version", TORCH_VERSION},
          {"pipeline_schedule", name},
          {"pipeline_model_parallel_size", std::to_string(ranks)},
          {"num_microbatches", std::to_string(options.num_microbatches)},
          {"the schedule's rows (hash)", std::to_string(std::hash<std::string>{}(rows.str()))},
          {"variable_seq_lengths", options.variable_seq_lengths ? "true" : "false"},
          {"reduce_mirrors", options.reduce_mirrors ? "true" : "false"},
          {"defer_tail_weight_gradients", options.defer_tail_weight_gradients ? "true" : "false"},
          {"mean_loss_on_every_rank", options.mean_loss_on_every_rank ? "true" : "false"},
          {"slots", std::to_string(options.slots)}};
}

std::vector<int> micro_batches(const Schedule& schedule, const std::function<bool(int)>& mine) {
  std::vector<int> result;
  for (int k = 0; k < schedule.num_microbatches; ++k) {
    if (mine(k)) result.push_back(k);
  }
  return result;
}

std::map<int, TensorList> by_micro_batch(const std::string& what, const std::vector<int>& ids,
                                         const MicroBatches& given) {
  if (given.size() != ids.size()) {
    throw ScheduleError("step", fmt::format("{} must hold one entry for each of this rank's {} micro-batches, got {}",
                                            what, ids.size(), given.size()));
  }
  std::map<int, TensorList> result;
  for (std::size_t i = 0; i < ids.size(); ++i) result[ids[i]] = given[i];
  return result;
}

using Edges = std::vector<std::pair<int, int>>;

void add_both_ways(std::set<std::pair<int, int>>& edges, int a, int b) {
  if (a == b) return;
  edges.insert({a, b});
  edges.insert({b, a});
}

// Every directed edge between neighbours, in one order on every rank.
Edges neighbour_edges(const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  std::set<std::pair<int, int>> edges;
  for (int k : {0, schedule.num_microbatches - 1}) {
    for (int stage = 0; stage + 1 < placement.stages(); ++stage) {
      add_both_ways(edges, placement.rank_of(stage, k), placement.rank_of(stage + 1, k));
    }
  }
  return {edges.begin(), edges.end()};
}

// Between mirrors, and between the two ends, which may hold the copies of a tied embedding.
Edges mirror_edges(const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  std::set<std::pair<int, int>> edges;
  add_both_ways(edges, placement.input_rank(0), placement.loss_rank(0));
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    add_both_ways(edges, rank, placement.mirror_of(rank).value_or(rank));
  }
  return {edges.begin(), edges.end()};
}

std::shared_ptr<Transport> transport_for(const std::string& name, c10::intrusive_ptr<c10d::ProcessGroup> group,
                                         const PipelineOptions& options) {
  C10dTransportOptions transport{
      .timeout = options.timeout, .nccl_max_ctas = options.nccl_max_ctas, .failures = options.failures};
  try {
    const Schedule schedule = make_schedule(name, group->getSize(), options);
    transport.edges = neighbour_edges(schedule);
    transport.mirror_edges = mirror_edges(schedule);
  } catch (const std::exception&) {
    // The pipeline meets the same mistake and tells the other ranks, for which Gloo needs no edges.
  }
  return make_c10d_transport(std::move(group), transport);
}

}  // namespace

struct Pipeline::Impl {
  Impl(std::string name, std::shared_ptr<Transport> over, std::vector<std::shared_ptr<StageModule>> modules,
       PipelineOptions given);

  std::vector<StageParameter> take_stages(std::vector<std::shared_ptr<StageModule>> modules);
  void build(std::vector<StageParameter> parameters);
  void watch();
  void guarded(const std::function<std::string()>& action, const std::function<void()>& body);
  [[noreturn]] void fail(FailureRecord mine, bool echo);
  void call_on_fatal(const FailureRecord& record);
  FailureRecord first_record(const FailureRecord& mine, bool echo);

  StepResult guarded_run(const std::function<StepResult()>& body);

  MicroBatches split(const TensorList& batch, std::size_t count) const;
  StepResult run(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion, bool training,
                 bool return_outputs);
  StepResult run_split(const TensorList& inputs, const TensorList& labels, const Criterion* criterion, bool training,
                       bool return_outputs);
  StepInputs step_inputs(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion);
  std::optional<double> mean_over_ranks(double local, bool has_losses);
  StepResult results(StepOutputs outputs, const Criterion* criterion);
  void backward_into_host(const MicroBatches& inputs, StepOutputs& outputs);
  void require_no_pending_gradients() const;
  void compare_copies();
  void finish_gradients();

  std::string name;
  std::shared_ptr<Transport> transport;
  PipelineOptions options;
  Plan plan;
  Stages stages;
  std::vector<int> input_ids;
  std::vector<int> loss_ids;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<GradientReduction> reduction;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<LossWeights> weights;
  std::map<int, double> weight_of;  // By micro-batch, of the current step.
  bool gradients_open = false;      // A step's gradients await finish_gradients().
  std::optional<FailureRecord> failed;
  std::once_flag told;           // on_fatal is called once.
  bool copies_compared = false;  // Done before the first training step.
  StepStatistics statistics;     // Of the last training step.
  std::unique_ptr<Watchdog> watchdog;
};

Pipeline::Impl::Impl(std::string schedule, std::shared_ptr<Transport> over,
                     std::vector<std::shared_ptr<StageModule>> modules, PipelineOptions given)
    : name(std::move(schedule)),
      transport(std::move(over)),
      options(std::move(given)),
      plan{Schedule{name, Placement::loop(1), 0, {}},
           {name, Placement::loop(1), 0, 1, {}, {}},
           {name, Placement::loop(1), 0, 1, {}, {}},
           {}} {
  std::optional<std::string> error;
  std::vector<StageParameter> parameters;
  try {
    plan = make_plan(name, *transport, options);
    parameters = take_stages(std::move(modules));
  } catch (const std::exception& mistake) {
    error = mistake.what();
  }
  agree(*transport, digest_of(name, plan, options, transport->size()), error);
  build(std::move(parameters));
  watch();
}

// What can be refused without another rank.
std::vector<StageParameter> Pipeline::Impl::take_stages(std::vector<std::shared_ptr<StageModule>> modules) {
  const Placement& placement = plan.schedule.placement;
  const int rank = transport->rank();
  stages = pair_with_stages(plan, rank, std::move(modules));
  input_ids = micro_batches(plan.schedule, [&](int k) { return placement.input_rank(k) == rank; });
  loss_ids = micro_batches(plan.schedule, [&](int k) { return placement.loss_rank(k) == rank; });
  return collect_parameters(stages, plan.reduction_order, options.main_grads);
}

// Collective.
void Pipeline::Impl::build(std::vector<StageParameter> parameters) {
  const Placement& placement = plan.schedule.placement;
  const int rank = transport->rank();
  const std::optional<int> mirror = placement.mirror_of(rank);
  const bool reduces = mirror && options.reduce_mirrors;
  TiedParameters tied = find_tied(*transport, mirror, parameters);
  gradients = std::make_unique<Gradients>(std::move(parameters), reduces || !tied.empty());
  if (mirror) check_mirrors(*transport, *mirror, *gradients);
  reduction =
      tied_reduction(transport, std::move(tied), reduces ? mirrored_reduction(transport, *mirror) : no_reduction());
  auto mailbox = std::make_shared<Mailbox>(transport, placement, options.variable_seq_lengths);
  executor = std::make_unique<Executor>(rank, placement, stages, std::move(mailbox), *gradients, *reduction);
  std::optional<int> other_end;
  if (placement.is_bidirectional() && !loss_ids.empty()) other_end = transport->size() - 1 - rank;
  weights = std::make_unique<LossWeights>(transport, other_end);
}

void Pipeline::Impl::watch() {
  if (!options.failures) return;
  watchdog = std::make_unique<Watchdog>(options.failures, [this](const FailureRecord& record) {
    options.on_fatal ? call_on_fatal(record) : transport->abort(record.to_string());
  });
}

// --- the failure path

FailureRecord Pipeline::Impl::first_record(const FailureRecord& mine, bool echo) {
  if (!options.failures) return mine;
  const auto deadline = std::chrono::steady_clock::now() + kEchoPatience;
  while (echo && std::chrono::steady_clock::now() < deadline) {
    if (const auto first = options.failures->first()) return *first;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return options.failures->record(mine);
}

void Pipeline::Impl::call_on_fatal(const FailureRecord& record) {
  std::call_once(told, [&] { options.on_fatal(record); });
}

// Called while the original exception is handled, which the new one is nested around.
void Pipeline::Impl::fail(FailureRecord mine, bool echo) {
  failed = mine;
  try {
    failed = first_record(mine, echo);
  } catch (const std::exception&) {
    // The channel is lost too; what this rank knows still stands.
  }
  if (options.on_fatal) call_on_fatal(*failed);
  std::throw_with_nested(PipelineError(transport->rank(), *failed));
}

void Pipeline::Impl::guarded(const std::function<std::string()>& action, const std::function<void()>& body) {
  if (failed) throw PipelineError(transport->rank(), *failed);
  try {
    body();
  } catch (const PeerError& error) {
    fail({error.peer(), "an unknown action", error.what()}, true);
  } catch (const TransportError& error) {
    fail({transport->rank(), action(), error.what()}, true);
  } catch (const std::exception& error) {
    fail({transport->rank(), action(), error.what()}, false);
  } catch (...) {
    fail({transport->rank(), action(), "an exception of an unknown type"}, false);
  }
}

StepResult Pipeline::Impl::guarded_run(const std::function<StepResult()>& body) {
  StepResult result;
  guarded([this] { return executor->current_action(); }, [&] { result = body(); });
  return result;
}

// --- a step

MicroBatches Pipeline::Impl::split(const TensorList& batch, std::size_t count) const {
  if (batch.empty()) return MicroBatches(count);
  if (count == 0) throw ScheduleError("step", "this rank takes no inputs or labels of this kind; pass an empty list");
  for (const at::Tensor& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0 || options.variable_seq_lengths) continue;
    if (tensor.size(0) % static_cast<std::int64_t>(count) == 0) continue;
    throw ScheduleError("step", fmt::format("{} rows do not divide into {} micro-batches of one shape; give a multiple "
                                            "of {}, or set variable_seq_lengths: true",
                                            tensor.size(0), count, count));
  }
  return split_rows(batch, static_cast<int>(count));
}

StepInputs Pipeline::Impl::step_inputs(const MicroBatches& inputs, const MicroBatches& labels,
                                       const Criterion* criterion) {
  StepInputs step;
  step.inputs = by_micro_batch("inputs", input_ids, inputs);
  step.labels = by_micro_batch("labels", loss_ids, labels);
  step.criterion = criterion;
  weight_of.clear();
  double local = 0;
  for (int k : loss_ids) {
    weight_of[k] = criterion == nullptr ? 0 : criterion->weight_of(step.labels.at(k));
    local += weight_of[k];
  }
  if (!loss_ids.empty()) weights->start(local);
  const bool sum = criterion != nullptr && criterion->returns_sum;
  step.loss_scale = [this, sum](int k) { return weights->share(sum ? 1.0 : weight_of.at(k)); };
  return step;
}

// The mean loss of the global batch from each end's part; nothing where no rank has a criterion.
std::optional<double> Pipeline::Impl::mean_over_ranks(double local, bool has_losses) {
  at::Tensor parts =
      at::tensor({local, has_losses ? 1.0 : 0.0}, at::TensorOptions().dtype(at::kDouble)).to(transport->device());
  transport->all_reduce_sum(parts);
  const at::Tensor sums = parts.cpu();
  if (sums[1].item<double>() == 0) return std::nullopt;
  return sums[0].item<double>();
}

StepResult Pipeline::Impl::results(StepOutputs outputs, const Criterion* criterion) {
  StepResult result;
  double local = 0;
  for (auto& [k, loss] : outputs.losses) {
    const double weight = weight_of.at(k);
    const bool sum = criterion->returns_sum;
    if (options.mean_loss_on_every_rank) local += loss.item<double>() * weights->share(sum ? 1.0 : weight);
    if (sum) loss = weight > 0 ? loss / weight : at::zeros_like(loss);
    result.losses.push_back(loss);
  }
  for (auto& [k, tensors] : outputs.outputs) result.outputs.push_back(std::move(tensors));
  if (!loss_ids.empty()) weights->finish();
  if (options.mean_loss_on_every_rank) result.mean_loss = mean_over_ranks(local, !outputs.losses.empty());
  result.statistics = executor->statistics();
  return result;
}

// Inputs that come out of a graph of the host's: one backward for all of them, since they may share it.
void Pipeline::Impl::backward_into_host(const MicroBatches& inputs, StepOutputs& outputs) {
  TensorList roots;
  TensorList gradients_in;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto found = outputs.input_grads.find(input_ids[i]);
    if (found == outputs.input_grads.end()) continue;
    for (std::size_t t = 0; t < inputs[i].size(); ++t) {
      if (!inputs[i][t].defined() || !inputs[i][t].requires_grad() || !found->second[t].defined()) continue;
      roots.push_back(inputs[i][t]);
      gradients_in.push_back(found->second[t]);
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients_in);
}

void Pipeline::Impl::require_no_pending_gradients() const {
  if (!gradients_open) return;
  throw ScheduleError("step", fmt::format("the last step's gradients are not final (pending: {}); call "
                                          "finish_gradients() or OptimizerHook::step() first",
                                          executor->store().empty() ? "reductions" : executor->store().describe()));
}

StepResult Pipeline::Impl::run(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion,
                               bool training, bool return_outputs) {
  require_no_pending_gradients();
  if (training) compare_copies();
  StepInputs step = step_inputs(inputs, labels, criterion);
  step.training = training;
  step.return_outputs = return_outputs;
  if (training) gradients->begin_step();
  gradients_open = gradients_open || training;
  const Program& program = training ? plan.training : plan.evaluation;
  StepOutputs outputs = executor->run(program.rows[transport->rank()], std::move(step));
  if (training && !options.defer_tail_weight_gradients) finish_gradients();
  if (training) backward_into_host(inputs, outputs);
  return results(std::move(outputs), criterion);
}

StepResult Pipeline::Impl::run_split(const TensorList& inputs, const TensorList& labels, const Criterion* criterion,
                                     bool training, bool return_outputs) {
  return run(split(inputs, input_ids.size()), split(labels, loss_ids.size()), criterion, training, return_outputs);
}

void Pipeline::Impl::finish_gradients() {
  if (!gradients_open) return;
  const auto& deferred = plan.training.deferred_weight;
  if (!deferred.empty()) executor->run_deferred(deferred[transport->rank()]);
  for (int stage : plan.reduction_order) {
    if (!executor->reduced().contains(stage)) reduction->start(stage, *gradients);
  }
  reduction->finish(*gradients);
  gradients->finish_step();
  gradients_open = false;
  statistics = executor->statistics();
}

void Pipeline::Impl::compare_copies() {
  if (!std::exchange(copies_compared, true)) check_copies(*transport, gradients->parameters());
}

// --- the public face

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
  impl_->guarded([&] { return action; }, body);
}

int Pipeline::rank() const { return impl_->transport->rank(); }
int Pipeline::size() const { return impl_->transport->size(); }
const std::string& Pipeline::schedule() const { return impl_->name; }
std::vector<int> Pipeline::stages() const { return impl_->plan.schedule.placement.stages_of(rank()); }
std::vector<int> Pipeline::input_micro_batches() const { return impl_->input_ids; }
std::vector<int> Pipeline::loss_micro_batches() const { return impl_->loss_ids; }
bool Pipeline::reduces_mirrors() const {
  return impl_->options.reduce_mirrors || !impl_->plan.schedule.placement.mirror_of(rank());
}
const StepStatistics& Pipeline::statistics() const { return impl_->statistics; }
const std::vector<StageParameter>& Pipeline::parameters() const { return impl_->gradients->parameters(); }
const Gradients& Pipeline::gradients() const { return *impl_->gradients; }
std::shared_ptr<Transport> Pipeline::transport() const { return impl_->transport; }
std::string Pipeline::pending_weight_gradients() const {
  return impl_->executor->store().empty() ? "" : impl_->executor->store().describe();
}

}  // namespace dualpipe
