// plugin/compare/run_files.h
//
// read_run(): the folder that a training run wrote (docs/run_files.md), as values.
//
// Times are seconds; those of a step count from the moment at which that rank began it, and `began` is that moment in
// Unix time, so that the ranks of one machine share a clock (see measured_steps.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

// A line of metrics.jsonl.
struct IterationMetrics {
  std::int64_t iteration = 0;  // From 1, or where the run was resumed.
  double lm_loss = 0;          // NaN where the file has null: what JSON writers make of a number that is not finite.
  std::optional<double> grad_norm;  // Likewise; nothing where the file does not say.
  double ms = 0;
};

// A phase of an action: "0F3 0.attention" is phase 0.attention of the forward of micro-batch 3 in stage 0.
struct PhaseRecord {
  std::string name;
  double start = 0;
  double end = 0;
  std::optional<double> waited;  // Of an exchange alone: how long the rank did nothing but wait for it.
};

struct MemorySample {
  double time = 0;
  double bytes = 0;  // Of live activations, from this time on.
};

// What one rank recorded of one step.
struct RecordedStep {
  std::int64_t iteration = 0;
  double began = 0;  // Unix time.
  double seconds = 0;
  std::vector<Span> spans;  // Compute actions in the order of starting.
  std::vector<PhaseRecord> phases;
  std::optional<double> exchange_seconds;
  std::optional<double> exposed_seconds;
  std::optional<int> peak_activations;
  std::optional<double> peak_activation_bytes;
  std::vector<MemorySample> memory;  // In the order of time.
};

// A timeline_rank<R>.jsonl.
struct RankTimeline {
  std::string schedule;
  int rank = 0;  // Global.
  int world_size = 1;
  int pipeline_rank = 0;
  int pipeline_model_parallel_size = 1;
  int num_microbatches = 1;  // Of one pipeline.
  int num_stages = 1;
  std::vector<int> stages;  // That this rank holds.
  std::optional<double> parameter_bytes;
  std::optional<double> gradient_bytes;
  std::optional<double> optimizer_bytes;
  std::vector<RecordedStep> steps;
};

struct RunFiles {
  std::vector<IterationMetrics> iterations;  // Ascending.
  std::vector<RankTimeline> ranks;           // All of the world, by rank; empty where the host wrote no timelines.
};

// Throws ScheduleError that names the file, and the line where there is one: no metrics.jsonl or an empty one, a line
// that is cut off or no JSON, a value that is missing, of the wrong type or out of range, a rank without a file, ranks
// that disagree about the run.
RunFiles read_run(const std::filesystem::path& folder);

// The parts of read_run(). read_timelines() gives an empty list where the folder has no timeline files.
std::vector<IterationMetrics> read_metrics(const std::filesystem::path& file);
std::vector<RankTimeline> read_timelines(const std::filesystem::path& folder);

}  // namespace dualpipe
