#include "plugin/runtime/pipeline_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <functional>
#include <set>
#include <sstream>

#include "plugin/analysis/validate.h"
#include "plugin/runtime/c10d_transport.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

void require_valid(const Schedule& schedule, const std::vector<Violation>& violations) {
  if (!violations.empty()) throw ScheduleError(schedule.name, explain(schedule, violations.front()));
}

void check_options(const PipelineOptions& options) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw ScheduleError("pipeline", what);
  };
  require(options.num_microbatches >= 1,
          fmt::format("num_microbatches must be at least 1, got {}", options.num_microbatches));
  require(options.slots >= 1, fmt::format("slots must be at least 1, got {}", options.slots));
  require(
      options.gradient_bucket_bytes >= 1,
      fmt::format("gradient_bucket_bytes must be at least 1, got {}; 25 << 20 works", options.gradient_bucket_bytes));
  require(
      !options.shard_gradients || (!options.parallel.gradients.empty() && options.parallel.world),
      "shard_gradients needs parallel.gradients, the groups to divide them over, and parallel.world for the norm of "
      "what is divided; got none");
}

Schedule make_schedule(const std::string& name, int ranks, const PipelineOptions& options) {
  check_options(options);
  Schedule schedule =
      options.registry.make(name, {ranks, options.num_microbatches, options.virtual_pipeline_model_parallel_size});
  require_valid(schedule, validate(schedule));
  return schedule;
}

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

std::vector<int> micro_batches(const Schedule& schedule, const std::function<bool(int)>& mine) {
  std::vector<int> result;
  for (int k = 0; k < schedule.num_microbatches; ++k) {
    if (mine(k)) result.push_back(k);
  }
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

}  // namespace

PipelinePlan empty_plan(const std::string& name) {
  const Program none{name, Placement::loop(1), 0, 1, {}, {}};
  return {Schedule{name, Placement::loop(1), 0, {}}, none, none, {}, {}, {}};
}

PipelinePlan make_plan(const std::string& name, int rank, int ranks, const PipelineOptions& options) {
  Schedule schedule = make_schedule(name, ranks, options);
  Program training =
      lower(schedule, {.slots = options.slots, .defer_tail_weight_gradients = options.defer_tail_weight_gradients});
  require_valid(schedule, validate(training, {.defer_tail_weight_gradients = options.defer_tail_weight_gradients}));
  Program evaluation = make_evaluation(schedule, options);
  // A program that defers W has no REDUCE_GRAD for their stages.
  std::vector<int> order =
      options.defer_tail_weight_gradients ? reduction_order(lower(schedule), rank) : reduction_order(training, rank);
  const Placement& placement = schedule.placement;
  std::vector<int> inputs = micro_batches(schedule, [&](int k) { return placement.input_rank(k) == rank; });
  std::vector<int> losses = micro_batches(schedule, [&](int k) { return placement.loss_rank(k) == rank; });
  return {std::move(schedule), std::move(training), std::move(evaluation),
          std::move(order),    std::move(inputs),   std::move(losses)};
}

Stages pair_with_stages(const Schedule& schedule, int rank, std::vector<std::shared_ptr<StageModule>> modules) {
  const std::vector<int> stages = schedule.placement.stages_of(rank);
  if (stages.size() != modules.size()) {
    throw ScheduleError(schedule.name, fmt::format("needs one module per stage of the rank, stages {}, got {}",
                                                   fmt::join(stages, ", "), modules.size()));
  }
  Stages paired;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!modules[i]) throw ScheduleError(schedule.name, fmt::format("the module of stage {} is null", stages[i]));
    paired.emplace_back(stages[i], std::move(modules[i]));
  }
  return paired;
}

Digest digest_of(const std::string& name, const PipelinePlan& plan, const PipelineOptions& options, int ranks) {
  std::ostringstream rows;
  print_rows(rows, plan.schedule.rows);
  return {
      {"torch version", TORCH_VERSION},
      {"pipeline_schedule", name},
      {"pipeline_model_parallel_size", std::to_string(ranks)},
      {"num_microbatches", std::to_string(options.num_microbatches)},
      {"the schedule's rows (hash)", std::to_string(std::hash<std::string>{}(rows.str()))},
      {"variable_seq_lengths", options.variable_seq_lengths ? "true" : "false"},
      {"reduce_mirrors", options.reduce_mirrors ? "true" : "false"},
      {"overlap_phases", options.overlap_phases ? "true" : "false"},
      {"defer_tail_weight_gradients", options.defer_tail_weight_gradients ? "true" : "false"},
      {"mean_loss_on_every_rank", options.mean_loss_on_every_rank ? "true" : "false"},
      {"slots", std::to_string(options.slots)},
      {"ranks of parallel.world", options.parallel.world ? std::to_string(options.parallel.world->getSize()) : "none"},
      {"parallel.gradients", options.parallel.gradients.empty() ? "none" : "given"},
      {"gradient_bucket_bytes", std::to_string(options.gradient_bucket_bytes)},
      {"shard_gradients", options.shard_gradients ? "true" : "false"}};
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

}  // namespace dualpipe
