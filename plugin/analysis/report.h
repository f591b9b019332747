// plugin/analysis/report.h
//
// A plan in numbers: what `dualpipe plan --format json` prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/closed_form.h"
#include "plugin/analysis/cost_file.h"
#include "plugin/analysis/cost_model.h"
#include "plugin/analysis/memory.h"
#include "plugin/analysis/simulate.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct PlanReport {
  std::string schedule;
  int pipeline_model_parallel_size = 0;
  int num_microbatches = 0;
  double makespan = 0;
  std::vector<double> idle;                  // Per rank.
  std::optional<double> bubble_closed_form;  // Idle time of the worst rank, where the form is exact.
  std::vector<int> peak_activations;         // Per rank.
  double utilization = 0;
  int least_slots = 1;
  std::optional<double> iteration;  // Makespan and step_overhead; of a plan under a cost file, as is the next.
  std::vector<RankMemory> memory;   // Per rank; empty where the file does not say.
  std::optional<std::string> note;  // Of the file: how its stages were divided.
};

PlanReport report(const Schedule& schedule, const CostModel& cost);
// The same from a timeline that simulate(schedule, cost) gave.
PlanReport report(const Schedule& schedule, const CostModel& cost, const Timeline& timeline);

// Under a cost file.
PlanReport report(const Schedule& schedule, const FittedCost& fitted, const Timeline& timeline);

// One object, keys as the members are named; without iteration, memory and note where there is no cost file.
std::string to_json(const PlanReport& report);

}  // namespace dualpipe
