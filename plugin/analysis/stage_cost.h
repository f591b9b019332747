// plugin/analysis/stage_cost.h
//
// stage_cost(): what a stage costs, from what its phases cost. It gives the simulation of a schedule a predicted F&B.
#pragma once

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/merge.h"

namespace dualpipe {

// F, and I with the communications on its way back, each awaited where it is posted; W; and F&B, the makespan of the
// stage's forward merged with its own backward. A B thus costs I + W, an upper bound: the runtime runs each W behind
// the exchange that follows its I. Throws ScheduleError as merge() does.
StageCost stage_cost(const Phases& phases, const MergeOptions& options = {});

}  // namespace dualpipe
