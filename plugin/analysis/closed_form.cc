#include "plugin/analysis/closed_form.h"

namespace dualpipe {
namespace {

bool is_folded(const std::string& name) { return name == "dualpipe" || name == "dualpipev"; }

double full_backward(const StageCost& cost) { return cost.backward_input + cost.backward_weight; }

std::optional<double> folded_form(const Schedule& schedule, const StageCost& cost) {
  const double backward = full_backward(cost);
  const bool in_domain = cost.forward == cost.backward_input && cost.forward == cost.backward_weight &&
                         cost.overlapped >= backward && cost.overlapped <= cost.forward + backward;
  if (!in_domain) {
    return std::nullopt;
  }
  const int half = schedule.placement.stages() / 2;
  return (half - 1) * (cost.overlapped + backward - 3 * cost.backward_weight);
}

std::optional<double> zb1p_form(const Schedule& schedule, const StageCost& cost) {
  const int ranks = schedule.placement.ranks();
  const bool in_domain = schedule.num_microbatches >= ranks && cost.backward_weight <= cost.forward &&
                         cost.backward_weight <= cost.backward_input;
  if (!in_domain) {
    return std::nullopt;
  }
  return (ranks - 1) * (cost.forward + full_backward(cost) - 2 * cost.backward_weight);
}

}  // namespace

std::optional<double> bubble_closed_form(const Schedule& schedule, const CostModel& cost) {
  if (!cost.per_stage.empty() || cost.latency != 0) {
    return std::nullopt;
  }
  const StageCost& stage = cost.uniform;
  if (schedule.name == "1f1b") {
    return (schedule.placement.ranks() - 1) * (stage.forward + full_backward(stage));
  }
  if (schedule.name == "zb1p") {
    return zb1p_form(schedule, stage);
  }
  return is_folded(schedule.name) ? folded_form(schedule, stage) : std::nullopt;
}

ClosedForm closed_form(const std::string& schedule_name) {
  if (schedule_name == "1f1b") {
    return {"(P-1)(F+B)", "any M"};
  }
  if (schedule_name == "zb1p") {
    return {"(P-1)(F+B-2W)", "M >= P and W <= F, W <= I"};
  }
  if (schedule_name == "dualpipe") {
    return {"(P/2-1)(F&B+B-3W)", "F = I = W, B <= F&B <= F+B"};
  }
  if (schedule_name == "dualpipev") {
    return {"(S/2-1)(F&B+B-3W), S = 2P stages", "F = I = W, B <= F&B <= F+B"};
  }
  return {};
}

std::optional<MemoryBound> memory_bound(const Schedule& schedule) {
  if (schedule.name == "1f1b" || schedule.name == "zb1p") {
    return MemoryBound{"P", schedule.placement.ranks()};
  }
  if (schedule.name == "dualpipe") {
    return MemoryBound{"P+1", schedule.placement.ranks() + 1};
  }
  if (schedule.name == "dualpipev") {
    return MemoryBound{"S+1", schedule.placement.stages() + 1};
  }
  return std::nullopt;
}

}  // namespace dualpipe
