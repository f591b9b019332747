// lower() and least_slots() against the slow reference, for every small size of every schedule.
#include <gtest/gtest.h>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/reference_lower.h"

namespace dualpipe {
namespace {

constexpr int kMaxRanks = 8;
constexpr int kMaxMicrobatches = 20;

// Every P and M up to the bounds that the schedule takes.
std::vector<Schedule> all_sizes(const std::string& name) {
  std::vector<Schedule> schedules;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (int micro_batches = 1; micro_batches <= kMaxMicrobatches; ++micro_batches) {
      try {
        schedules.push_back(builtin_registry().make(name, {ranks, micro_batches}));
      } catch (const ScheduleError&) {
        continue;
      }
    }
  }
  return schedules;
}

std::string title(const Schedule& schedule) {
  return schedule.name + " P=" + std::to_string(schedule.placement.ranks()) +
         " M=" + std::to_string(schedule.num_microbatches);
}

void expect_reference(const Schedule& schedule, int slots) {
  const std::vector<Row> expected = reference_lower(schedule, slots);
  const Program program = lower(schedule, {.slots = slots});
  ASSERT_EQ(program.rows.size(), expected.size());
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(print_row(program.rows[rank]), print_row(expected[rank]))
        << title(schedule) << " slots=" << slots << " rank=" << rank;
  }
}

class AgainstReference : public testing::TestWithParam<std::string> {};

TEST_P(AgainstReference, LowersTheSame) {
  for (const Schedule& schedule : all_sizes(GetParam())) {
    expect_reference(schedule, kDefaultSlots);
    expect_reference(forward_only(schedule), kDefaultSlots);
  }
}

TEST_P(AgainstReference, LowersTheSameWithOtherSlots) {
  for (const Schedule& schedule : all_sizes(GetParam())) {
    if (schedule.num_microbatches % 5 == 0) {
      expect_reference(schedule, 1);
      expect_reference(schedule, 3);
    }
  }
}

TEST_P(AgainstReference, FindsTheSameLeastSlots) {
  for (const Schedule& schedule : all_sizes(GetParam())) {
    ASSERT_EQ(least_slots(schedule), reference_least_slots(schedule)) << title(schedule);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, AgainstReference, testing::ValuesIn(builtin_registry().names()),
                         [](const auto& info) { return "Of_" + info.param; });

}  // namespace
}  // namespace dualpipe
