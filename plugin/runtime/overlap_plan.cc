#include "plugin/runtime/overlap_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

// What a phase lacks or has too much of; "" where nothing.
std::string why_no_phase(const Phase& phase) {
  const bool communicates = phase.spec.kind == PhaseKind::kCommunication;
  if (communicates ? !phase.exchange || phase.compute : !phase.compute || phase.exchange) {
    return communicates ? "must have `exchange` and no `compute`, since it is kCommunication"
                        : "must have `compute` and no `exchange`, since it is kCompute";
  }
  if (!communicates && (phase.exchange_back || !phase.spec.has_backward)) {
    return "must have no `exchange_back` and has_backward = true, since it is kCompute";
  }
  if (communicates && phase.recompute) return "must not be computed again, since it is kCommunication";
  if (communicates && phase.spec.has_backward != static_cast<bool>(phase.exchange_back)) {
    return phase.spec.has_backward ? "must have `exchange_back`, or has_backward = false"
                                   : "must have no `exchange_back`, since has_backward is false";
  }
  return "";
}

void require_phases(int stage, const std::vector<Phase>& phases) {
  for (const Phase& phase : phases) {
    if (const std::string why = why_no_phase(phase); !why.empty()) {
      throw ScheduleError("phases", fmt::format("phase \"{}\" of stage {} {}", phase.spec.name, stage, why));
    }
  }
}

// Each phase takes what the one before it gives, as far as both are known.
void require_chain(int stage, const std::vector<Phase>& phases) {
  for (std::size_t i = 1; i < phases.size(); ++i) {
    const Phase& before = phases[i - 1];
    const Phase& phase = phases[i];
    if (!before.gives || !phase.takes || agree(*before.gives, *phase.takes)) continue;
    throw ScheduleError(
        "phases",
        fmt::format("phase \"{}\" of stage {} must take what phase \"{}\" before it gives, {}, got {}", phase.spec.name,
                    stage, before.spec.name, to_string(*before.gives), to_string(*phase.takes)));
  }
}

// The loss needs a graph to be in.
Phase loss_phase() {
  return {.spec = {.name = "loss", .forward = 0, .backward_input = 0, .backward_weight = 0},
          .compute = [](const TensorList& inputs, PhaseContext&) { return inputs; }};
}

StageOffer offer_of(int stage, StageModule& module, bool is_last) {
  StageOffer offer{module.overlapped_forward_backward(), &module.hook_type(), {}};
  if (offer.hook) return offer;
  offer.phases = module.phases();
  require_phases(stage, offer.phases);
  require_chain(stage, offer.phases);
  if (is_last && !offer.phases.empty() && offer.phases.back().spec.kind == PhaseKind::kCommunication) {
    offer.phases.push_back(loss_phase());
  }
  return offer;
}

Phases specs_of(const StageOffer& offer) {
  Phases specs;
  for (const Phase& phase : offer.phases) specs.push_back(phase.spec);
  return specs;
}

// Nothing where a hook or a merge of their phases overlaps them.
std::string why_not_overlapped(const OverlapPlan& plan, OverlapPlan::Pair pair, bool overlap_phases) {
  const StageOffer& offer0 = plan.offers.at(pair.first);
  const StageOffer& offer1 = plan.offers.at(pair.second);
  const auto [low, high] = std::minmax(pair.first, pair.second);
  const auto only = [pair](bool first) { return first ? pair.second : pair.first; };
  if (offer0.hook && offer1.hook) {
    return *offer0.hook_type == *offer1.hook_type ? ""
                                                  : fmt::format("stages {} and {} are of different types", low, high);
  }
  if (offer0.hook || offer1.hook) {
    return fmt::format("stage {} offers no overlapped_forward_backward", only(static_cast<bool>(offer0.hook)));
  }
  if (offer0.phases.empty() && offer1.phases.empty()) {
    return fmt::format("stages {} and {} offer neither overlapped_forward_backward nor phases", low, high);
  }
  if (offer0.phases.empty() || offer1.phases.empty()) {
    return fmt::format("stage {} has no phases", only(!offer0.phases.empty()));
  }
  return overlap_phases ? "" : "overlap_phases is false";
}

void plan_pair(OverlapPlan& plan, OverlapPlan::Pair pair, bool overlap_phases) {
  if (plan.programs.contains(pair) || plan.in_sequence.contains(pair)) return;
  const StageOffer& offer0 = plan.offers.at(pair.first);
  const StageOffer& offer1 = plan.offers.at(pair.second);
  if (std::string why = why_not_overlapped(plan, pair, overlap_phases); !why.empty()) {
    plan.in_sequence.emplace(pair, std::move(why));
  } else if (!offer0.hook) {
    plan.programs.emplace(pair, merge(specs_of(offer0), specs_of(offer1)));
  }
}

}  // namespace

OverlapPlan plan_overlap(const Row& row, const Stages& stages, int last_stage, bool overlap_phases) {
  OverlapPlan plan;
  for (const auto& [stage, module] : stages) plan.offers.emplace(stage, offer_of(stage, *module, stage == last_stage));
  for (const Action& action : row) {
    if (action.is_overlap()) plan_pair(plan, {action.op.stage, action.paired->stage}, overlap_phases);
  }
  return plan;
}

}  // namespace dualpipe
