// plugin/analysis/measured_cost.h
//
// measure_cost(): the cost model under which simulate() gives what was measured.
//
// A cost is what the actions of a stage typically took: the mean over all steps without the least and the greatest
// twentieth, since a step is a sum of them. What durations alone would miss:
//   backward  one figure per micro-batch and stage, of B or of I and W together; the typical one is divided as I and W
//             are. A stage that never ran them by themselves is divided as the others, or evenly
//   F&B       a stage that never ran its forward in a pair gains by one, against its own F + B, what pairs gain
//             elsewhere, or nothing
//   latency   how long after the end of the sender's action a receiver starts that was free by then, typically, less
//             the overhead. A receiver that was still busy says nothing about the link, and pairs count only where
//             there is nothing else, since a pair that runs by phases sends before its end
//   overhead  what typically passes between two actions of a rank of which the second needs nothing of another rank;
//             contained in every cost
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/cost_model.h"
#include "plugin/analysis/simulate.h"

namespace dualpipe {

struct MeasuredCost {
  CostModel cost;       // per_stage has an entry for each; in the unit of the timelines.
  double overhead = 0;  // Per action, contained in the costs.
  // By stage: what pairs with its forward took, as a share of that F and the B of the stage that they ran with: 0.8
  // where a fifth is gained. Nothing where there was no pair.
  std::vector<std::optional<double>> pair_share;
  std::vector<std::string> notes;  // What was not seen and how it was filled, in words.
};

// Each timeline is one step of all ranks of a pipeline, on a clock that the ranks share; steps of different schedules
// go together if they divide the model into the same stages. Throws ScheduleError where the F of a stage, or all of its
// backward, was never seen.
MeasuredCost measure_cost(const std::vector<Timeline>& steps, int stages);

}  // namespace dualpipe
