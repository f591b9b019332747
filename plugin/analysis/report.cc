#include "plugin/analysis/report.h"

#include "plugin/analysis/memory_json.h"
#include "plugin/schedule/lower.h"

namespace dualpipe {

PlanReport report(const Schedule& schedule, const CostModel& cost) {
  return report(schedule, cost, simulate(schedule, cost));
}

PlanReport report(const Schedule& schedule, const CostModel& cost, const Timeline& timeline) {
  PlanReport result;
  result.schedule = schedule.name;
  result.pipeline_model_parallel_size = schedule.placement.ranks();
  result.num_microbatches = schedule.num_microbatches;
  result.makespan = timeline.makespan();
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    result.idle.push_back(timeline.idle(rank));
  }
  result.bubble_closed_form = bubble_closed_form(schedule, cost);
  result.peak_activations = timeline.peak_activations;
  result.utilization = timeline.utilization();
  result.least_slots = least_slots(schedule);
  return result;
}

PlanReport report(const Schedule& schedule, const FittedCost& fitted, const Timeline& timeline) {
  PlanReport result = report(schedule, fitted.cost, timeline);
  result.iteration = result.makespan + fitted.step_overhead;
  if (!fitted.bytes.empty()) {
    result.memory = memory_of(schedule, fitted.bytes);
  }
  result.note = fitted.note;
  return result;
}

std::string to_json(const PlanReport& report) {
  nlohmann::ordered_json json;
  json["schedule"] = report.schedule;
  json["pipeline_model_parallel_size"] = report.pipeline_model_parallel_size;
  json["num_microbatches"] = report.num_microbatches;
  json["makespan"] = report.makespan;
  json["idle"] = report.idle;
  json["bubble_closed_form"] = nullptr;
  if (report.bubble_closed_form) {
    json["bubble_closed_form"] = *report.bubble_closed_form;
  }
  json["peak_activations"] = report.peak_activations;
  json["utilization"] = report.utilization;
  json["least_slots"] = report.least_slots;
  if (report.iteration) {
    json["iteration"] = *report.iteration;
    json["memory"] = analysis::memory_json(report.memory);
    json["note"] = report.note ? nlohmann::ordered_json(*report.note) : nullptr;
  }
  return json.dump(2);
}

}  // namespace dualpipe
