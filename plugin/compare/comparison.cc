#include "plugin/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "plugin/compare/differences.h"
#include "plugin/compare/measured_figures.h"
#include "plugin/compare/notes.h"
#include "plugin/compare/prediction.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

const ScheduleRuns* find_reference(const std::vector<ScheduleRuns>& runs, const std::string& baseline) {
  const auto finished = [](const ScheduleRuns& run) { return !run.failure && !run.rounds.empty(); };
  const auto named = std::find_if(runs.begin(), runs.end(),
                                  [&](const ScheduleRuns& run) { return finished(run) && run.schedule == baseline; });
  const auto found = named != runs.end() ? named : std::find_if(runs.begin(), runs.end(), finished);
  return found != runs.end() ? &*found : nullptr;
}

using Iterations = std::vector<IterationMetrics>;

// "10 iterations, 1 to 10"
std::string describe(const Iterations& iterations) {
  return std::to_string(iterations.size()) + (iterations.size() == 1 ? " iteration, " : " iterations, ") +
         std::to_string(iterations.front().iteration) + " to " + std::to_string(iterations.back().iteration);
}

// Nothing where both have the same numbers.
std::optional<std::string> find_difference(const Iterations& given, const Iterations& expected) {
  if (given.size() != expected.size()) return describe(given);
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].iteration != expected[i].iteration)
      return describe(given) + ", with " + std::to_string(given[i].iteration) + " for " +
             std::to_string(expected[i].iteration);
  }
  return std::nullopt;
}

std::optional<std::string> find_failure(const ScheduleRuns& run, const ScheduleRuns& reference, int warmup) {
  if (run.failure) return run.failure;
  if (run.rounds.empty()) return "the comparison stopped before its turn";
  const Iterations& expected = reference.rounds.front().iterations;
  for (const RunFiles& round : run.rounds) {
    if (const auto difference = find_difference(round.iterations, expected))
      return "metrics.jsonl must have those of " + reference.schedule + " = " + describe(expected) + "; got " +
             *difference;
  }
  if (expected.size() <= static_cast<std::size_t>(warmup))
    return "a run must have more iterations than --warmup = " + std::to_string(warmup) + ", got " +
           std::to_string(expected.size());
  return std::nullopt;
}

Rounds times_of(const ScheduleRuns& run, int warmup) {
  Rounds rounds;
  for (const RunFiles& round : run.rounds) {
    std::vector<double>& times = rounds.emplace_back();
    for (auto i = static_cast<std::size_t>(warmup); i < round.iterations.size(); ++i)
      times.push_back(round.iterations[i].ms);
  }
  return rounds;
}

std::vector<double> joined(const Rounds& rounds) {
  std::vector<double> all;
  for (const std::vector<double>& round : rounds) all.insert(all.end(), round.begin(), round.end());
  return all;
}

void add_curves(ScheduleFigures& figures, const std::vector<IterationMetrics>& iterations) {
  for (const IterationMetrics& metrics : iterations) {
    figures.losses.push_back(metrics.lm_loss);
    figures.grad_norms.push_back(metrics.grad_norm);
  }
}

// Nothing where a host says that iterations take no time.
std::optional<SpeedUp> speed_up_of_shared(Rounds baseline, Rounds rounds) {
  const std::size_t shared = std::min(baseline.size(), rounds.size());
  baseline.resize(shared);
  rounds.resize(shared);
  const SpeedUp faster = speed_up(baseline, rounds);
  return faster.value > 0 && std::isfinite(faster.value) ? std::optional(faster) : std::nullopt;
}

void add_times(ScheduleFigures& figures, const ScheduleRuns& run, const ScheduleRuns& reference,
               const ComparisonOptions& options) {
  Rounds rounds = times_of(run, options.warmup);
  figures.ms = quartiles(joined(rounds));
  if (run.schedule == options.baseline)
    figures.speedup = SpeedUp{1, 1, 1};
  else if (reference.schedule == options.baseline)
    figures.speedup = speed_up_of_shared(times_of(reference, options.warmup), std::move(rounds));
}

ScheduleFigures figures_of(const ScheduleRuns& run, const ScheduleRuns& reference, const ComparisonOptions& options) {
  ScheduleFigures figures;
  figures.schedule = run.schedule;
  figures.failure = find_failure(run, reference, options.warmup);
  figures.not_run = !run.failure && run.rounds.empty();
  if (figures.failure) return figures;
  add_times(figures, run, reference, options);
  add_curves(figures, run.rounds.front().iterations);
  compare::add_differences(figures, run.rounds, reference.rounds.front().iterations);
  compare::add_measured_figures(figures, run.rounds, static_cast<std::size_t>(options.warmup));
  if (options.cost) compare::add_prediction(figures, run.rounds.front(), *options.cost);
  return figures;
}

ScheduleFigures failed(const ScheduleRuns& run) {
  ScheduleFigures figures;
  figures.schedule = run.schedule;
  figures.failure = run.failure;
  return figures;
}

}  // namespace

bool Comparison::has_failures() const {
  return std::any_of(runs.begin(), runs.end(), [](const ScheduleFigures& run) { return run.failure.has_value(); });
}

Comparison compare_runs(const std::vector<ScheduleRuns>& runs, const ComparisonOptions& options) {
  Comparison comparison;
  comparison.options = options;
  const ScheduleRuns* reference = find_reference(runs, options.baseline);
  if (reference != nullptr) {
    comparison.reference = reference->schedule;
    comparison.iterations = static_cast<int>(reference->rounds.front().iterations.size());
    for (const ScheduleRuns& run : runs)
      comparison.rounds = std::max(comparison.rounds, static_cast<int>(run.rounds.size()));
  }
  for (const ScheduleRuns& run : runs) {
    comparison.runs.push_back(reference != nullptr ? figures_of(run, *reference, options) : failed(run));
    if (reference == nullptr) continue;
    for (std::string& mismatch : compare::mismatches_of(comparison.runs.back(), reference->schedule, options))
      comparison.mismatches.push_back(std::move(mismatch));
  }
  comparison.notes = compare::comparison_notes(comparison);
  return comparison;
}

}  // namespace dualpipe
