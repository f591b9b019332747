#include "plugin/analysis/closed_form.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plugin/analysis/report.h"
#include "plugin/schedule/registry.h"

namespace dualpipe {
namespace {

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {ranks, num_microbatches, 2});
}

CostModel costs(double forward, double input, double weight, double overlapped) {
  CostModel cost;
  cost.uniform = {forward, input, weight, overlapped};
  return cost;
}

double worst_idle(const PlanReport& plan) { return *std::max_element(plan.idle.begin(), plan.idle.end()); }

TEST(ClosedForm, Of1f1bIsTheSimulatedIdleTimeAtAnyCost) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int num_microbatches = 1; num_microbatches <= 2 * ranks + 2; ++num_microbatches) {
      for (const auto& cost : {costs(1, 1, 1, 3), costs(0.5, 2, 1, 3), costs(3, 0.5, 0.25, 3)}) {
        const PlanReport plan = report(make("1f1b", ranks, num_microbatches), cost);
        EXPECT_DOUBLE_EQ(plan.bubble_closed_form.value(), worst_idle(plan)) << ranks << " " << num_microbatches;
      }
    }
  }
}

TEST(ClosedForm, OfZb1pIsTheSimulatedIdleTimeInItsDomain) {
  const double values[] = {0.5, 1, 1.5, 3};
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int num_microbatches = ranks; num_microbatches <= 2 * ranks + 3; ++num_microbatches) {
      for (const double forward : values) {
        for (const double input : values) {
          for (const double weight : values) {
            const PlanReport plan = report(make("zb1p", ranks, num_microbatches), costs(forward, input, weight, 9));
            if (weight > forward || weight > input) {
              EXPECT_FALSE(plan.bubble_closed_form);
            } else {
              EXPECT_NEAR(plan.bubble_closed_form.value(), worst_idle(plan), 1e-9)
                  << ranks << " " << num_microbatches << " " << forward << " " << input << " " << weight;
            }
          }
        }
      }
    }
  }
}

TEST(ClosedForm, OfDualpipeAndDualpipevIsTheSimulatedIdleTimeInItsDomain) {
  for (const double unit : {1.0, 0.75}) {
    for (const double overlapped : {2.0, 2.25, 2.5, 3.0}) {
      const CostModel cost = costs(unit, unit, unit, overlapped * unit);
      for (int ranks = 2; ranks <= 12; ranks += 2) {
        for (int num_microbatches = 2 * ranks; num_microbatches <= 4 * ranks + 2; num_microbatches += 2) {
          const PlanReport plan = report(make("dualpipe", ranks, num_microbatches), cost);
          EXPECT_NEAR(plan.bubble_closed_form.value(), worst_idle(plan), 1e-9) << ranks << " " << num_microbatches;
        }
      }
      for (int ranks = 1; ranks <= 6; ++ranks) {
        for (int num_microbatches = 2 * ranks; num_microbatches <= 4 * ranks + 1; ++num_microbatches) {
          const PlanReport plan = report(make("dualpipev", ranks, num_microbatches), cost);
          EXPECT_NEAR(plan.bubble_closed_form.value(), worst_idle(plan), 1e-9) << ranks << " " << num_microbatches;
        }
      }
    }
  }
}

TEST(ClosedForm, IsNullOutsideItsDomain) {
  const Schedule dualpipe = make("dualpipe", 8, 20);
  EXPECT_EQ(bubble_closed_form(dualpipe, costs(1, 1, 1, 1.5)), std::nullopt);          // F&B < B.
  EXPECT_EQ(bubble_closed_form(dualpipe, costs(1, 1, 1, 3.5)), std::nullopt);          // F&B > F+B.
  EXPECT_EQ(bubble_closed_form(dualpipe, costs(1, 0.5, 1.5, 3)), std::nullopt);        // F, I and W differ.
  EXPECT_EQ(bubble_closed_form(make("zb1p", 4, 3), costs(1, 1, 1, 3)), std::nullopt);  // M < P.
  EXPECT_EQ(bubble_closed_form(make("interleaved_1f1b", 4, 8), CostModel{}), std::nullopt);
  CostModel latency;
  latency.latency = 1;
  EXPECT_EQ(bubble_closed_form(dualpipe, latency), std::nullopt);
  CostModel per_stage;
  per_stage.per_stage.resize(8);
  EXPECT_EQ(bubble_closed_form(dualpipe, per_stage), std::nullopt);
}

TEST(MemoryBound, IsReachedByTheFigures) {
  EXPECT_EQ(memory_bound(make("1f1b", 4, 8))->value, 4);
  EXPECT_EQ(memory_bound(make("zb1p", 4, 8))->value, 4);
  EXPECT_EQ(memory_bound(make("dualpipe", 4, 8))->value, 5);
  EXPECT_EQ(memory_bound(make("dualpipev", 4, 8))->value, 9);
  EXPECT_FALSE(memory_bound(make("interleaved_1f1b", 4, 8)));
}

}  // namespace
}  // namespace dualpipe
