#include "plugin/schedule/pair_clock.h"

#include <algorithm>

namespace dualpipe {

PairClock::PairClock(const PairProgram& program, const MergeOptions& options)
    : program_(program),
      slowdown_(options.slowdown),
      forward_arrivals_(program.forward.size()),
      backward_arrivals_(program.backward.size()) {}

PairClock::Interval PairClock::advance(const PairStep& step) {
  switch (step.kind) {
    case PairStepKind::kRun:
      return run(cost_of(program_, step.part, step.phase));
    case PairStepKind::kPost:
      return post(step, cost_of(program_, step.part, step.phase));
    case PairStepKind::kWait:
      now_ = std::max(now_, arrival(step));
      break;
    default:
      break;
  }
  return {now_, now_};
}

PairClock::Interval PairClock::run(double cost) {
  const double start = now_;
  const double shared = std::max(0.0, link_free_ - now_);  // Nothing is posted while a compute runs.
  now_ += cost * slowdown_ <= shared ? cost * slowdown_ : cost + shared - shared / slowdown_;
  return {start, now_};
}

PairClock::Interval PairClock::post(const PairStep& step, double cost) {
  const double start = std::max(now_, link_free_);
  link_free_ = start + cost;
  arrival(step) = link_free_;
  return {start, link_free_};
}

double& PairClock::arrival(const PairStep& step) {
  return (step.part == PhasePart::kForward ? forward_arrivals_ : backward_arrivals_)[step.phase];
}

double cost_of(const PairProgram& program, PhasePart part, int phase) {
  switch (part) {
    case PhasePart::kForward:
      return program.forward[phase].forward;
    case PhasePart::kInput:
      return program.backward[phase].backward_input;
    default:
      return program.backward[phase].backward_weight;
  }
}

double makespan(const PairProgram& program, const MergeOptions& options) {
  PairClock clock(program, options);
  for (const PairStep& step : program.steps) {
    clock.advance(step);
  }
  return clock.now();
}

}  // namespace dualpipe
