// plugin/compare/comparison.h
//
// compare_runs(): runs of one training under several schedules, in figures. What a figure needs and the host did not
// write leaves it empty.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/compare/run_files.h"
#include "plugin/compare/statistics.h"

namespace dualpipe {

// The runs of one schedule, a round each.
struct ScheduleRuns {
  std::string schedule;
  std::optional<std::string> failure;  // Why there is nothing to compare.
  std::vector<RunFiles> rounds;        // Where the comparison stopped within a round, some have one more than others.
};

struct ComparisonOptions {
  std::string title;
  std::string command;            // That made the runs.
  std::string baseline;           // The schedule that speed-ups and differences refer to; one of the runs.
  int warmup = 3;                 // First iterations of a run, which no time is taken from.
  double tolerance_first = 1e-5;  // Relative differences of the first iteration's loss and gradient norm, ...
  double tolerance_curve = 1e-3;  // ... and of every iteration's loss.
  std::optional<CostFile> cost = std::nullopt;  // By which iterations are predicted; nothing: they are not.
};

// What one rank did in a step; seconds since the step's first action. Where it is simulated, spans alone.
struct RankPicture {
  int rank = 0;  // Global.
  std::vector<int> stages;
  std::vector<Span> spans;
  std::vector<PhaseRecord> phases;
  std::vector<MemorySample> memory;
  int pipeline = 0;
};
using StepPicture = std::vector<RankPicture>;  // All ranks, pipeline by pipeline.

struct ScheduleFigures {
  std::string schedule;
  std::optional<std::string> failure;  // Why there is nothing below.
  bool not_run = false;                // Nothing failed: `failure` says why its turn did not come.

  std::optional<Estimate> ms;      // Of an iteration, between quartiles.
  std::optional<SpeedUp> speedup;  // Over the baseline, in the rounds that both have.

  // Of an iteration, by the options' cost file and the schedule alone, as `dualpipe plan --cost` gives it.
  std::optional<double> predicted_ms;
  std::optional<double> predicted_difference;  // From the median that was measured, relative to that.
  std::optional<std::string> no_prediction;    // Why there is none where there is a cost file.
  std::optional<std::string> prediction_note;  // What a reader should know of it: how stages were divided.

  // Medians over the recorded steps, from the first action of a pipeline to its last.
  std::optional<double> pipeline_ms;
  std::optional<double> simulated_ms;  // Of the same order, with costs measured in these steps.
  std::optional<double> bubble;        // Share of the ranks' time without an action.
  std::optional<double> exposed_ms;    // In which actions did nothing but wait for an exchange, mean of the ranks.
  std::optional<double>
      utilization;  // What the two leave of the ranks' time; without exposed_ms, what the bubble leaves.

  // Of the rank that has most.
  std::optional<int> peak_activations;  // (stage, micro-batch) at once.
  std::optional<double> peak_activation_bytes;
  std::optional<double> parameter_bytes;
  std::optional<double> gradient_bytes;
  std::optional<double> optimizer_bytes;

  std::optional<int> num_stages;
  std::optional<int> chunks;  // Stages of a rank.
  std::optional<int> pipeline_size;
  std::optional<double> parameter_copies;  // How many ranks of a pipeline hold a stage.

  std::optional<std::string> no_simulation;  // Why there is none of what was measured.

  // Relative, largest over all rounds; infinite where one of the two is not finite, nothing where one is not known.
  std::optional<double> first_loss_difference;
  std::optional<double> first_grad_norm_difference;
  std::optional<double> loss_difference;
  std::optional<double> grad_norm_difference;

  std::vector<double> losses;  // Of the first round.
  std::vector<std::optional<double>> grad_norms;

  StepPicture measured;   // The step in which a pipeline took the median time, with the pipelines beside it.
  StepPicture simulated;  // The same ranks.
};

struct Comparison {
  ComparisonOptions options;
  int iterations = 0;                    // Of a run.
  int rounds = 0;                        // Of the schedule that ran most often.
  std::optional<std::string> reference;  // What differences refer to; nothing where every schedule failed.
  std::vector<ScheduleFigures> runs;     // In the order given.
  std::vector<std::string> notes;        // What a reader has to know to judge fairly, a sentence each.
  std::vector<std::string> mismatches;   // Differences above the tolerances; then the schedules do not train alike.

  bool has_failures() const;
};

// A run that does not have the iterations of the baseline's, or no more than the warm-up, becomes a failure, and so
// does a schedule that never ran. Where the baseline failed, differences refer to the first schedule that did not, and
// there are no speed-ups.
Comparison compare_runs(const std::vector<ScheduleRuns>& runs, const ComparisonOptions& options);

}  // namespace dualpipe
