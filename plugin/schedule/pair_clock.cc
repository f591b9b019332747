#include "plugin/schedule/pair_clock.h"

#include <algorithm>

namespace dualpipe {
namespace {

constexpr int kPairsToSettle = 8;

}  // namespace

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

double period(const PairProgram& program, const MergeOptions& options) {
  const std::span<const PairStep> opening = opening_of(program);
  const std::span<const PairStep> closing = closing_of(program);
  const std::size_t rest = program.steps.size() - opening.size() - closing.size();
  PairClock clock(program, options);
  const auto run = [&](std::span<const PairStep> steps) {
    for (const PairStep& step : steps) {
      clock.advance(step);
    }
  };
  double settled = 0;
  for (int pair = 0; pair < 2 * kPairsToSettle; ++pair) {
    if (pair == kPairsToSettle) {
      settled = clock.now();
    }
    run(opening);
    if (pair > 0) {
      run(closing);
    }
    run(std::span(program.steps).subspan(opening.size(), rest));
  }
  return (clock.now() - settled) / kPairsToSettle;
}

}  // namespace dualpipe
