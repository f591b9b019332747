#include "plugin/compare/prediction.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plugin/analysis/simulate.h"
#include "plugin/compare/measured_steps.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"

namespace dualpipe::compare {
namespace {

constexpr const char* kTrainersOwn = "builtin_1f1b";

bool is_made_for_the_run(const std::string& name) { return name == "auto" || name.ends_with(".csv"); }

Schedule order_that_ran(const std::string& name, const RunFiles& run) {
  const std::vector<MeasuredStep> steps = measured_steps(run);
  if (steps.empty()) throw ScheduleError(name, "must have a step that all ranks of a pipeline recorded, got none");
  return measured_schedule(steps.front(), name);
}

Schedule make_named(const std::string& name, const ScheduleSpec& spec) {
  const Registry registry = builtin_registry();
  const std::vector<std::string> names = registry.names();
  if (std::ranges::find(names, name) == names.end())
    throw ScheduleError(name, fmt::format("must be a schedule that the simulator knows, {}, got one of the host's own",
                                          fmt::join(names, ", ")));
  return registry.make(name, spec);
}

Schedule planned(const ScheduleFigures& figures, const RunFiles& run) {
  if (is_made_for_the_run(figures.schedule)) return order_that_ran(figures.schedule, run);
  const RankTimeline& first = run.ranks.front();
  const ScheduleSpec spec{first.pipeline_model_parallel_size, first.num_microbatches, figures.chunks.value_or(1)};
  Schedule schedule = make_named(figures.schedule == kTrainersOwn ? "1f1b" : figures.schedule, spec);
  if (schedule.placement.stages() != first.num_stages)
    throw ScheduleError(figures.schedule, fmt::format("must have run the {} stages that {} has on {} ranks, got {}",
                                                      schedule.placement.stages(), schedule.name,
                                                      schedule.placement.ranks(), first.num_stages));
  return schedule;
}

}  // namespace

void add_prediction(ScheduleFigures& figures, const RunFiles& run, const CostFile& cost) {
  if (run.ranks.empty()) {
    figures.no_prediction = "the timelines say how many ranks and micro-batches there are, and it wrote none";
    return;
  }
  try {
    const Schedule schedule = planned(figures, run);
    const FittedCost fitted = fit(cost, schedule.placement.stages());
    figures.predicted_ms = simulate_totals(schedule, {fitted.cost}).front().makespan + fitted.step_overhead;
    figures.prediction_note = fitted.note;
  } catch (const ScheduleError& error) {
    figures.no_prediction = error.what();
    return;
  }
  if (figures.ms && figures.ms->value > 0) figures.predicted_difference = *figures.predicted_ms / figures.ms->value - 1;
}

}  // namespace dualpipe::compare
