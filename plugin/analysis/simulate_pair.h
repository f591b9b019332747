// plugin/analysis/simulate_pair.h
//
// When every step of a merged pair starts and ends under the costs of its phases: the prediction of F&B.
#pragma once

#include <vector>

#include "plugin/schedule/merge.h"

namespace dualpipe {

struct PairSpan {
  PhasePart part;
  int phase = 0;
  bool communication = false;
  double start = 0;  // Of a communication: when the link begins with it.
  double end = 0;
};

struct PairTimeline {
  std::vector<PairSpan> spans;  // In the order of starting.
  double makespan = 0;
  double compute = 0;        // Sum of compute costs, without slowdown.
  double communication = 0;  // Sum of communication costs.
  double exposed() const { return makespan - compute; }
};

// Inputs and output gradients are there at the start; sends cost nothing. One compute and one communication at a time;
// while the link is busy, a compute beside it advances at 1 / slowdown. Throws ScheduleError for a program that cannot
// run (why_invalid()).
PairTimeline simulate(const PairProgram& program, const MergeOptions& options = {});

// What each pair takes in a row of equal ones, whose closing_of() stands behind the opening_of() of the next. Throws as
// simulate() does.
double makespan_in_a_row(const PairProgram& program, const MergeOptions& options = {});

}  // namespace dualpipe
