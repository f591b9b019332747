#include "plugin/compare/run_cost.h"

#include <algorithm>
#include <map>
#include <optional>

#include "plugin/analysis/measured_cost.h"
#include "plugin/compare/measured_steps.h"
#include "plugin/compare/phase_samples.h"
#include "plugin/compare/run_bytes.h"
#include "plugin/compare/statistics.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using compare::PhaseSamples;
using compare::StagePhases;

constexpr double kMilliseconds = 1000;

StageCost in_milliseconds(const StageCost& cost) {
  return {kMilliseconds * cost.forward, kMilliseconds * cost.backward_input, kMilliseconds * cost.backward_weight,
          kMilliseconds * cost.overlapped};
}

std::optional<double> all_to_all(const StagePhases& phases) {
  std::optional<double> sum;
  for (const auto& [name, samples] : phases) {
    if (!samples.is_exchange) continue;
    for (const std::vector<double>* part : {&samples.forward, &samples.backward_input, &samples.backward})
      if (!part->empty()) sum = sum.value_or(0) + kMilliseconds * median(*part);
  }
  return sum;
}

// What iterations take beside the schedule of their steps.
double step_overhead(const RunFiles& run, const std::vector<MeasuredStep>& steps) {
  std::map<std::int64_t, double> makespans;  // Of the slowest pipeline, by iteration.
  for (const MeasuredStep& step : steps)
    makespans[step.iteration] = std::max(makespans[step.iteration], kMilliseconds * step.timeline.makespan());
  std::vector<double> rest;
  for (const IterationMetrics& metrics : run.iterations) {
    const auto found = makespans.find(metrics.iteration);
    if (found != makespans.end()) rest.push_back(metrics.ms - found->second);
  }
  return rest.empty() ? 0 : std::max(0.0, median(std::move(rest)));
}

std::vector<MeasuredStep> require_steps(const RunFiles& run) {
  std::vector<MeasuredStep> steps = measured_steps(run);
  if (steps.empty())
    throw ScheduleError("run files",
                        "timeline files must have a step that all ranks of a pipeline recorded, got none; "
                        "does the host write them? (docs/run_files.md)");
  return steps;
}

CostFile file_of(const MeasuredCost& measured, const RunFiles& run, const std::vector<MeasuredStep>& steps) {
  CostFile file;
  file.latency = kMilliseconds * measured.cost.latency;
  file.step_overhead = step_overhead(run, steps);
  const std::vector<StagePhases> phases = compare::sample_phases(run);
  for (std::size_t stage = 0; stage < phases.size(); ++stage) {
    CostFileStage& entry = file.stages.emplace_back();
    entry.cost = in_milliseconds(measured.cost.per_stage[stage]);
    entry.all_to_all = all_to_all(phases[stage]);
  }
  compare::add_bytes(run, file.stages);
  file.layers = layer_costs(run);
  return file;
}

}  // namespace

RunCost cost_of_run(const RunFiles& run) {
  const std::vector<MeasuredStep> steps = require_steps(run);
  std::vector<Timeline> timelines;
  std::vector<double> makespans;
  for (const MeasuredStep& step : steps) {
    timelines.push_back(step.timeline);
    makespans.push_back(kMilliseconds * step.timeline.makespan());
  }
  const MeasuredCost measured = measure_cost(timelines, run.ranks.front().num_stages);
  RunCost cost;
  cost.file = file_of(measured, run, steps);
  cost.measured = median(std::move(makespans));
  cost.simulated =
      kMilliseconds * simulate(measured_schedule(steps.front(), run.ranks.front().schedule), measured.cost).makespan();
  cost.ranks = run.ranks.front().pipeline_model_parallel_size;
  cost.num_microbatches = run.ranks.front().num_microbatches;
  cost.pair_share = measured.pair_share;
  cost.notes = measured.notes;
  return cost;
}

}  // namespace dualpipe
