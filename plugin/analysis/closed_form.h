// plugin/analysis/closed_form.h
//
// What the papers say in one line about a schedule's idle time and memory. B is the full backward, I + W.
//
//   1f1b       (P-1)(F+B)               any M
//   zb1p       (P-1)(F+B-2W)            M >= P, W <= F and W <= I (with a longer W, steady ranks wait for each other)
//   dualpipe   (P/2-1)(F&B+B-3W)        F=I=W with B <= F&B <= F+B
//   dualpipev  (S/2-1)(F&B+B-3W)        the same; S = 2R stages
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

// The idle time of the worst rank by the form above. Null where the form is not the simulated idle time: outside its
// domain, for other schedules, under per-stage costs and with a latency.
std::optional<double> bubble_closed_form(const Schedule& schedule, const CostModel& cost);

// The form and its domain in words, by schedule name: "(P-1)(F+B)" and "any M"; empty for a schedule
// that has none.
struct ClosedForm {
  std::string formula;
  std::string domain;
};
ClosedForm closed_form(const std::string& schedule_name);

// The published bound on peak activations, e.g. "P+1" and 5 for dualpipe with P=4; null where there is none.
struct MemoryBound {
  std::string formula;
  int value = 0;
};
std::optional<MemoryBound> memory_bound(const Schedule& schedule);

}  // namespace dualpipe
