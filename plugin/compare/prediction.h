// plugin/compare/prediction.h
//
// add_prediction(): what an iteration of a schedule takes by a cost file, which knows nothing of the run that it is
// then held against.
#pragma once

#include "plugin/analysis/cost_file.h"
#include "plugin/compare/comparison.h"

namespace dualpipe::compare {

// Fills predicted_ms, predicted_difference and prediction_note, or no_prediction. `figures` have the layout of `run`
// and its time. The schedule is the simulator's of that name for the ranks, micro-batches and chunks of the run, 1f1b
// for builtin_1f1b; a search or a file has no other order than the one that ran. Neither serves where another division
// into stages ran.
void add_prediction(ScheduleFigures& figures, const RunFiles& run, const CostFile& cost);

}  // namespace dualpipe::compare
