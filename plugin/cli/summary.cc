#include "plugin/cli/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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

std::string describe_memory(const std::vector<RankMemory>& ranks) {
  const RankMemory& most = *std::max_element(
      ranks.begin(), ranks.end(), [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
  return fmt::format("{} on the fullest rank: parameters {}, gradients {}, optimizer {}, activations {}",
                     byte_text(most.total()), byte_text(most.parameters), byte_text(most.gradients),
                     byte_text(most.optimizer), byte_text(most.activations));
}

}  // namespace

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string byte_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(kUnits); ++unit) {
    bytes /= 1000;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string describe(const CostModel& cost) {
  const std::vector<StageCost> stages = cost.per_stage.empty() ? std::vector{cost.uniform} : cost.per_stage;
  const auto over_stages = [&stages](auto figure) {
    const auto less = [&figure](const StageCost& a, const StageCost& b) { return figure(a) < figure(b); };
    const auto [least, most] = std::minmax_element(stages.begin(), stages.end(), less);
    const std::string low = number(figure(*least)), high = number(figure(*most));
    return low == high ? low : low + " to " + high;
  };
  return fmt::format("forward {}, backward_input {}, backward_weight {} (so B = {}), overlapped {}, latency {}",
                     over_stages([](const StageCost& stage) { return stage.forward; }),
                     over_stages([](const StageCost& stage) { return stage.backward_input; }),
                     over_stages([](const StageCost& stage) { return stage.backward_weight; }),
                     over_stages([](const StageCost& stage) { return stage.backward_input + stage.backward_weight; }),
                     over_stages([](const StageCost& stage) { return stage.overlapped; }), number(cost.latency));
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

std::string summarize(const Schedule& schedule, const FittedCost& fitted, const PlanReport& report) {
  std::string text =
      line("schedule", fmt::format("{}, {} ranks, {} stages, {} micro-batches", schedule.name,
                                   schedule.placement.ranks(), schedule.placement.stages(), schedule.num_microbatches));
  text += line("costs", describe(fitted.cost));
  if (fitted.note) {
    text += line("", *fitted.note);
  }
  text += line("makespan", number(report.makespan));
  if (report.iteration) {
    text += line("iteration", number(*report.iteration) + " ms");
  }
  text += line("idle", describe_idle(report));
  text += line("utilization", fmt::format("{:.1f}%", 100 * report.utilization));
  text += line("closed form", describe_form(schedule, report));
  text += line("peak activations", describe_peak(schedule, report));
  if (!report.memory.empty()) {
    text += line("memory", describe_memory(report.memory));
  }
  text += line("least slots", fmt::format("{} per directed edge", report.least_slots));
  return text;
}

}  // namespace dualpipe::cli
