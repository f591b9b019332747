// plugin/analysis/simulate.h
//
// simulate(): when every action of a schedule starts and ends under a cost model. A measured run gives back a Timeline
// of the same type, so drawing, comparing and reporting take either.
#pragma once

#include <vector>

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct Span {
  Action action;
  double start = 0;
  double end = 0;
  double waited = 0;  // Of a measured one: how much of that the rank waited for messages.
};

struct Timeline {
  std::vector<std::vector<Span>> ranks;  // In the order of starting.
  std::vector<int> peak_activations;     // Per rank: most (stage, micro-batch) live at once. Live is from the start of
                                         // F to the end of B or W; in a pair, the F counts first.
  double makespan() const;               // Latest end.
  double busy(int rank) const;           // Sum of durations.
  double idle(int rank) const { return makespan() - busy(rank); }
  double utilization() const;  // Mean over ranks of busy / makespan.
};

// Each rank runs its row in order; an action starts when the rank is free and what it needs has arrived: the results of
// another rank `latency` after they were computed, those of its own rank at once. Throws ScheduleError if the ranks
// wait for each other (validate() says where).
Timeline simulate(const Schedule& schedule, const CostModel& cost = {});

// The figures of simulate() without its actions, for plans whose timeline would take gigabytes.
struct Totals {
  double makespan = 0;
  std::vector<double> busy;    // Per rank.
  double utilization() const;  // As Timeline's.
};
// Under each of the costs, in one walk over the schedule.
std::vector<Totals> simulate_totals(const Schedule& schedule, const std::vector<CostModel>& costs);

// Peak live activations per rank by the same definition, from the order of the rows alone.
std::vector<int> peak_activations(const Schedule& schedule);

}  // namespace dualpipe
