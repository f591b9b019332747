// plugin/schedule/pair_clock.h
//
// PairClock: when the steps of a pair's program start and end on one rank.
#pragma once

#include <vector>

#include "plugin/schedule/merge.h"

namespace dualpipe {

// Steps are given in the order of a valid program. Inputs and output gradients are there at once; sends cost nothing.
// While a communication runs, a compute beside it advances at 1 / slowdown.
class PairClock {
 public:
  struct Interval {
    double start = 0;
    double end = 0;
  };

  PairClock(const PairProgram& program, const MergeOptions& options);

  // Of a run its time, of a post that of its communication; of another step the moment at which the rank goes on.
  Interval advance(const PairStep& step);
  double now() const { return now_; }

 private:
  Interval run(double cost);
  Interval post(const PairStep& step, double cost);
  double& arrival(const PairStep& step);

  const PairProgram& program_;
  double slowdown_;
  double now_ = 0;
  double link_free_ = 0;
  std::vector<double> forward_arrivals_;
  std::vector<double> backward_arrivals_;
};

double cost_of(const PairProgram& program, PhasePart part, int phase);
double makespan(const PairProgram& program, const MergeOptions& options);
// Of each pair in a row of equal ones whose closing stands behind the opening of the next: the mean of the second half
// of a few.
double period(const PairProgram& program, const MergeOptions& options);

}  // namespace dualpipe
