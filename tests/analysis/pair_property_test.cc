// What holds for every merged pair that can be drawn.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "plugin/analysis/simulate_pair.h"
#include "tests/analysis/slow_pair.h"

namespace dualpipe {
namespace {

constexpr double kRounding = 1e-9;

// Quarters, so that sums are exact; a fifth of them 0.
double any_cost() { return *rc::gen::inRange(0, 5) == 0 ? 0 : *rc::gen::inRange(1, 13) / 4.0; }

// `in_a_row`: communications that may follow one another.
Phases any_phases(int most, int in_a_row) {
  Phases phases;
  const int count = *rc::gen::inRange(1, most + 1);
  int communications = 0;
  for (int i = 0; i < count; ++i) {
    const bool computes = *rc::gen::inRange(0, 2) == 0 || communications == in_a_row;
    communications = computes ? 0 : communications + 1;
    phases.push_back({std::to_string(i), computes ? PhaseKind::kCompute : PhaseKind::kCommunication, any_cost(),
                      any_cost(), any_cost(), *rc::gen::inRange(0, 4) != 0});
  }
  return phases;
}

void check_property(const std::string& name, void (*property)()) { ASSERT_TRUE(rc::check(name, property)); }

TEST(PairProperty, MergedPairsAreValidAndWithinTheirBounds) {
  check_property("max(compute, communication) <= merged <= sequence", [] {
    const Phases forward = any_phases(12, 12);
    const Phases backward = any_phases(12, 12);
    const MergeOptions options{.slowdown = *rc::gen::element(1.0, 1.0, 1.25, 3.0)};
    const PairProgram merged = merge(forward, backward, options);
    const PairProgram sequence = in_sequence(forward, backward);
    RC_ASSERT(why_invalid(merged) == "");
    RC_ASSERT(why_invalid(sequence) == "");
    const PairTimeline timeline = simulate(merged, options);
    RC_ASSERT(timeline.makespan <= simulate(sequence, options).makespan * (1 + kRounding));
    RC_ASSERT(timeline.makespan >= std::max(timeline.compute, timeline.communication) * (1 - kRounding));
    RC_ASSERT(merge(forward, backward, options).steps == merged.steps);
  });
}

// Two in a row: an exchange of split sizes and what it is for.
TEST(PairProperty, SmallPairsAreTheFastestOfAllOrders) {
  check_property("merged == least over all orders", [] {
    const Phases forward = any_phases(5, 2);
    const Phases backward = any_phases(4, 2);
    const double least = slow_least_makespan(forward, backward);
    const double merged = simulate(merge(forward, backward)).makespan;
    RC_ASSERT(merged <= least * (1 + kRounding));
    RC_ASSERT(merged >= least * (1 - kRounding));
  });
}

// Three in a row, of which the third is posted behind the other chain's communication.
TEST(PairProperty, ThreeCommunicationsInARowMayMissTheFastestOrder) {
  const auto compute = [](double forward, double input) {
    return PhaseSpec{"compute", PhaseKind::kCompute, forward, input, 0, true};
  };
  const auto communicate = [](double forward, double input) {
    return PhaseSpec{"communicate", PhaseKind::kCommunication, forward, input, 0, forward == 0};
  };
  const Phases forward{compute(0, 0), communicate(1, 0), communicate(1, 0), communicate(0.75, 0), compute(0.25, 0)};
  const Phases backward{communicate(0, 0.75), compute(0, 1)};
  EXPECT_EQ(slow_least_makespan(forward, backward), 3.5);
  EXPECT_EQ(simulate(merge(forward, backward)).makespan, 3.75);
}

// No step could stand earlier or later by the rule: a communication behind a compute is posted right behind it, but for
// others that are posted or sent, and is awaited right before the step that needs it.
TEST(PairProperty, CommunicationsArePostedEarlyAndAwaitedLate) {
  check_property("posts follow what they need, waits precede what needs them", [] {
    const PairProgram merged = merge(any_phases(10, 10), any_phases(10, 10));
    const std::vector<PairStep>& steps = merged.steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == PairStepKind::kWait) {
        RC_ASSERT(i + 1 < steps.size());
        const PairStep& next = steps[i + 1];
        const bool sends = next.kind == PairStepKind::kSendOutputs || next.kind == PairStepKind::kSendGradients;
        RC_ASSERT(sends || next.part == steps[i].part);
      }
      if (steps[i].kind == PairStepKind::kRun && i + 1 < steps.size()) {
        const PairStep& next = steps[i + 1];
        const bool waits_for_its_compute = next.kind == PairStepKind::kPost && next.part != steps[i].part;
        RC_ASSERT(!waits_for_its_compute);
      }
    }
  });
}

}  // namespace
}  // namespace dualpipe
