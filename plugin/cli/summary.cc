#include "plugin/cli/summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace dualpipe::cli {
namespace {

constexpr std::size_t kFewRanks = 16;

std::string line(const std::string& name, const std::string& value) { return fmt::format("{:<18}{}\n", name, value); }

std::string describe_idle(const PlanReport& report) {
  const double worst = *std::max_element(report.idle.begin(), report.idle.end());
  const double share = report.makespan > 0 ? 100 * worst / report.makespan : 0;
  return fmt::format("{}; {:.1f}% of the makespan on the worst", per_rank(report.idle), share);
}

std::string describe_form(const Schedule& schedule, const PlanReport& report) {
  const ClosedForm form = closed_form(schedule.name);
  if (form.formula.empty()) {
    return "none is known for this schedule";
  }
  constexpr const char* kDefinition = "B = I + W is the full backward";
  if (!report.bubble_closed_form) {
    return fmt::format("{}; not exact here, only for {} and no latency; {}", form.formula, form.domain, kDefinition);
  }
  return fmt::format("{} = {} idle on the worst rank; {}", form.formula, number(*report.bubble_closed_form),
                     kDefinition);
}

std::string describe_peak(const Schedule& schedule, const PlanReport& report) {
  const std::vector<double> peaks(report.peak_activations.begin(), report.peak_activations.end());
  const std::optional<MemoryBound> bound = memory_bound(schedule);
  const std::string text = per_rank(peaks);
  return bound ? fmt::format("{}; never above {} = {}", text, bound->formula, bound->value) : text;
}

}  // namespace

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string describe(const CostModel& cost) {
  const StageCost& stage = cost.uniform;
  return fmt::format("forward {}, backward_input {}, backward_weight {} (so B = {}), overlapped {}, latency {}",
                     number(stage.forward), number(stage.backward_input), number(stage.backward_weight),
                     number(stage.backward_input + stage.backward_weight), number(stage.overlapped),
                     number(cost.latency));
}

std::string per_rank(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (number(*least) == number(*most)) {
    return number(*least) + (values.size() == 1 ? "" : " on every rank");
  }
  std::string text = number(*least) + " to " + number(*most);
  if (values.size() > kFewRanks) {
    return text;
  }
  text += ", from rank 0:";
  for (const double value : values) {
    text += " " + number(value);
  }
  return text;
}

std::string summarize(const Schedule& schedule, const CostModel& cost, const PlanReport& report) {
  std::string text =
      line("schedule", fmt::format("{}, {} ranks, {} stages, {} micro-batches", schedule.name,
                                   schedule.placement.ranks(), schedule.placement.stages(), schedule.num_microbatches));
  text += line("costs", describe(cost));
  text += line("makespan", number(report.makespan));
  text += line("idle", describe_idle(report));
  text += line("utilization", fmt::format("{:.1f}%", 100 * report.utilization));
  text += line("closed form", describe_form(schedule, report));
  text += line("peak activations", describe_peak(schedule, report));
  text += line("least slots", fmt::format("{} per directed edge", report.least_slots));
  return text;
}

}  // namespace dualpipe::cli
