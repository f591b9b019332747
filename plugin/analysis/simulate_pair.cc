#include "plugin/analysis/simulate_pair.h"

#include <algorithm>

#include "plugin/schedule/error.h"
#include "plugin/schedule/pair_clock.h"

namespace dualpipe {

namespace {

void require_valid(const PairProgram& program) {
  if (const std::string fault = why_invalid(program); !fault.empty()) {
    throw ScheduleError("pair", "a program of merge() or in_sequence() is needed, got one that cannot run: " + fault);
  }
}

}  // namespace

PairTimeline simulate(const PairProgram& program, const MergeOptions& options) {
  require_valid(program);
  PairTimeline timeline;
  PairClock clock(program, options);
  for (const PairStep& step : program.steps) {
    const auto [start, end] = clock.advance(step);
    if (step.kind != PairStepKind::kRun && step.kind != PairStepKind::kPost) {
      continue;
    }
    const bool communication = step.kind == PairStepKind::kPost;
    timeline.spans.push_back({step.part, step.phase, communication, start, end});
    (communication ? timeline.communication : timeline.compute) += cost_of(program, step.part, step.phase);
  }
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(),
                   [](const PairSpan& a, const PairSpan& b) { return a.start < b.start; });
  timeline.makespan = clock.now();
  return timeline;
}

double makespan_in_a_row(const PairProgram& program, const MergeOptions& options) {
  require_valid(program);
  return period(program, options);
}

}  // namespace dualpipe
