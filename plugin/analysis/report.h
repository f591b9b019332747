// plugin/analysis/report.h
//
// A plan in numbers: what `dualpipe plan --format json` prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/closed_form.h"
#include "plugin/analysis/cost_model.h"
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
};

PlanReport report(const Schedule& schedule, const CostModel& cost);
// The same from a timeline that simulate(schedule, cost) gave.
PlanReport report(const Schedule& schedule, const CostModel& cost, const Timeline& timeline);

std::string to_json(const PlanReport& report);  // One object, keys as the members are named.

}  // namespace dualpipe
