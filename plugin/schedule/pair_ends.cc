// The two ends of a pair's program, plugin/schedule/merge.h.
#include <algorithm>

#include "plugin/schedule/merge.h"
#include "plugin/schedule/pair_clock.h"

namespace dualpipe {

std::span<const PairStep> opening_of(const PairProgram& program) {
  const auto opens = [&](const PairStep& step) {
    if (step.kind == PairStepKind::kTakeGradients) {
      return true;
    }
    if (step.part != PhasePart::kInput) {
      return false;
    }
    return step.kind == PairStepKind::kPost ||
           (step.kind == PairStepKind::kRun && cost_of(program, step.part, step.phase) == 0);
  };
  const auto end = std::find_if_not(program.steps.begin(), program.steps.end(), opens);
  return {program.steps.begin(), end};
}

std::span<const PairStep> closing_of(const PairProgram& program) {
  const auto stays = [](const PairStep& step) {
    return step.kind == PairStepKind::kPost || step.kind == PairStepKind::kSendGradients ||
           step.kind == PairStepKind::kTakeInputs;
  };
  const auto end = std::find_if(program.steps.rbegin(), program.steps.rend(), stays);
  return {end.base(), program.steps.end()};
}

}  // namespace dualpipe
