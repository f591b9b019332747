// plugin/analysis/cost_samples.h
//
// sample_costs(): what measured steps say about costs, action by action and gap by gap, for measured_cost.h to
// condense.
#pragma once

#include <vector>

#include "plugin/analysis/simulate.h"

namespace dualpipe::analysis {

struct StageSamples {
  std::vector<double> forward;
  std::vector<double> backward;  // One per micro-batch outside pairs: B, or I + W.
  std::vector<double> backward_input;
  std::vector<double> backward_weight;
  std::vector<double> overlapped;    // Of the forward's stage.
  std::vector<int> overlapped_with;  // The backward's stage of each of these.
};

struct CostSamples {
  std::vector<StageSamples> stages;
  double message =
      0;  // Typical gap from the end of a sender's action to the start of a receiver that was free by then.
  double overhead = 0;  // Typical gap between actions of a rank of which the second needs nothing of another.
};

// Throws ScheduleError for an action that is no compute or of a stage that is not there.
CostSamples sample_costs(const std::vector<Timeline>& steps, int stages);

// What to reckon with for the next of such values: the mean without the least and the greatest twentieth of them, one
// each of five or more. A step is a sum of them, so what delays a few actions counts, as it would not in a median; a
// hiccup of the machine does not. Of at least one value.
double typical(std::vector<double> values);

}  // namespace dualpipe::analysis
