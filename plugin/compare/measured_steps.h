// plugin/compare/measured_steps.h
//
// measured_steps(): what the ranks recorded of a step, put together pipeline by pipeline as one Timeline on one clock.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/analysis/simulate.h"
#include "plugin/compare/run_files.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

// One step of one pipeline. Seconds since the first action of any of its ranks.
struct MeasuredStep {
  std::int64_t iteration = 0;
  int pipeline = 0;
  double began = 0;                          // Unix time of that first action.
  Timeline timeline;                         // Rows by pipeline rank; peak_activations counted from the spans.
  std::vector<int> ranks;                    // Global rank per row.
  std::vector<const RecordedStep*> records;  // Per row, into `run`.
  std::vector<double> offsets;               // Per row: what turns a time of its record into one of the timeline.
};

// Every step that all ranks of a pipeline recorded, by iteration, then pipeline. Of the ranks with one pipeline rank,
// the k-th belongs to pipeline k, as in every layout of Megatron's. `run` must outlive the result.
std::vector<MeasuredStep> measured_steps(const RunFiles& run);

// The order that ran, as a schedule: compute actions alone, placement as parse_schedule() infers it. Throws
// ScheduleError where a rank ran nothing or a stage stands nowhere.
Schedule measured_schedule(const MeasuredStep& step, const std::string& name);

}  // namespace dualpipe
