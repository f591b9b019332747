// plugin/cli/plan_table.h
//
// Every schedule under the same costs: what `dualpipe plan --schedule all` prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/memory.h"
#include "plugin/cli/cost_source.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe::cli {

struct PlanRow {
  std::string schedule;
  std::optional<std::string> refusal;  // Why it cannot run here; the figures mean nothing then.
  int stages = 0;
  double iteration = 0;  // Makespan and step_overhead.
  double utilization = 0;
  int parameter_copies = 1;           // Ranks that hold a stage.
  std::vector<int> peak_activations;  // Per rank.
  std::vector<RankMemory> memory;     // Per rank; empty where it is not known.
  std::optional<std::string> note;
};

// The fastest first, at the end what cannot run.
std::vector<PlanRow> plan_all(const ScheduleSpec& spec, const CostSource& costs);

std::string to_table(const std::vector<PlanRow>& rows, const ScheduleSpec& spec, const CostSource& costs);
std::string to_json(const std::vector<PlanRow>& rows, const ScheduleSpec& spec);

}  // namespace dualpipe::cli
