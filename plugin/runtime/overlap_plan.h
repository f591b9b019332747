// plugin/runtime/overlap_plan.h
//
// What the stages of a rank offer for overlapped pairs, and how each pair is run: decided once, when a pipeline is
// made, without asking another rank.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "plugin/runtime/phase.h"
#include "plugin/runtime/stage_module.h"
#include "plugin/schedule/merge.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

using Stages = std::vector<std::pair<int, std::shared_ptr<StageModule>>>;  // (stage, module), in placement order.

// Of a stage's module. Phases are empty where it offers a hook, which wins.
struct StageOffer {
  OverlapHook hook;
  const std::type_info* hook_type = nullptr;
  std::vector<Phase> phases;  // On the last stage the last one computes: the loss belongs to it.
};

struct OverlapPlan {
  using Pair = std::pair<int, int>;  // (stage of the forward, stage of the backward)

  std::map<int, StageOffer> offers;         // By stage.
  std::map<Pair, PairProgram> programs;     // Of pairs that run by their phases.
  std::map<Pair, std::string> in_sequence;  // Why, of those that overlap nothing. Others run by a hook.
};

// `row`: the rank's, for the pairs that there are. Throws ScheduleError for phases that are no phases, or that do not
// chain.
OverlapPlan plan_overlap(const Row& row, const Stages& stages, int last_stage, bool overlap_phases);

}  // namespace dualpipe
