#include "plugin/analysis/stage_cost.h"

#include "plugin/analysis/simulate_pair.h"

namespace dualpipe {

StageCost stage_cost(const Phases& phases, const MergeOptions& options) {
  StageCost cost{0, 0, 0, simulate(merge(phases, phases, options), options).makespan};
  for (const PhaseSpec& phase : phases) {
    const bool computes = phase.kind == PhaseKind::kCompute;
    cost.forward += phase.forward;
    cost.backward_input += computes || phase.has_backward ? phase.backward_input : 0;
    cost.backward_weight += computes ? phase.backward_weight : 0;
  }
  return cost;
}

}  // namespace dualpipe
