// The largest plan that is promised: P=1024, M=16384.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "plugin/analysis/report.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/registry.h"

namespace dualpipe {
namespace {

double peak_gibibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

TEST(Scale, DualpipeOnAThousandRanksIsPlannedValidatedAndSimulatedInEightGibibytes) {
  const Schedule schedule = builtin_registry().make("dualpipe", {1024, 16384, 2});
  EXPECT_TRUE(validate(schedule).empty());
  EXPECT_TRUE(validate(lower(schedule)).empty());
  const PlanReport plan = report(schedule, CostModel{});
  EXPECT_EQ(plan.makespan, 3 * 16384 + plan.bubble_closed_form.value());
  EXPECT_EQ(plan.least_slots, 2);
  EXPECT_LT(peak_gibibytes(), 8);
}

}  // namespace
}  // namespace dualpipe
