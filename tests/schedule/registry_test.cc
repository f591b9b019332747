#include "plugin/schedule/registry.h"

#include <gtest/gtest.h>

#include "plugin/schedule/generators.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

// All forwards, then all backwards.
Schedule all_forwards_first(const ScheduleSpec& spec) {
  const int ranks = spec.pipeline_model_parallel_size;
  Schedule schedule{"gpipe", Placement::loop(ranks), spec.num_microbatches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    Row& row = schedule.rows.emplace_back();
    for (const Kind kind : {Kind::kForward, Kind::kBackward}) {
      for (int micro_batch = 0; micro_batch < spec.num_microbatches; ++micro_batch) {
        row.push_back(single(make_op(rank, kind, micro_batch)));
      }
    }
  }
  return schedule;
}

TEST(Registry, HasTheBuiltInSchedules) {
  EXPECT_EQ(builtin_registry().names(),
            (std::vector<std::string>{"1f1b", "dualpipe", "dualpipev", "interleaved_1f1b", "zb1p"}));
}

TEST(Registry, MakesWhatTheGeneratorMakes) {
  const Schedule schedule = builtin_registry().make("dualpipe", {4, 8});
  EXPECT_EQ(schedule.name, "dualpipe");
  EXPECT_EQ(schedule.rows, generate_dualpipe({4, 8}).rows);
}

TEST(Registry, TakesTheUsersOwn) {
  Registry registry = builtin_registry();
  registry.add("gpipe", all_forwards_first);
  EXPECT_EQ(registry.make("gpipe", {2, 3}).rows, all_forwards_first({2, 3}).rows);
  EXPECT_EQ(registry.names().size(), 6u);
  EXPECT_EQ(builtin_registry().names().size(), 5u);  // A registry is a value.
}

TEST(Registry, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal_of([] {
              builtin_registry().make("dualpip", {4, 8});
            }),
            "[pipeline_schedule] must be one of 1f1b, dualpipe, dualpipev, interleaved_1f1b, zb1p or a .csv file, got "
            "\"dualpip\"; did you mean dualpipe?");
  EXPECT_EQ(refusal_of([] {
              builtin_registry().make("chimera!", {4, 8});
            }),
            "[pipeline_schedule] must be one of 1f1b, dualpipe, dualpipev, interleaved_1f1b, zb1p or a .csv file, got "
            "\"chimera!\"");
}

TEST(Registry, RefusesNamesThatCannotBeReached) {
  Registry registry = builtin_registry();
  EXPECT_EQ(refusal_of([&] { registry.add("zb1p", all_forwards_first); }),
            "[pipeline_schedule] a new name must not be taken, got \"zb1p\"");
  EXPECT_EQ(refusal_of([&] { registry.add("my.csv", all_forwards_first); }),
            "[pipeline_schedule] a name must not be empty or end in .csv, got \"my.csv\"");
  EXPECT_EQ(refusal_of([&] { registry.add("", all_forwards_first); }),
            "[pipeline_schedule] a name must not be empty or end in .csv, got \"\"");
  EXPECT_EQ(refusal_of([&] { registry.add("mine", nullptr); }),
            "[pipeline_schedule] the generator of \"mine\" must be callable, got an empty function");
  EXPECT_EQ(registry.make("zb1p", {2, 2}).name, "zb1p");
}

TEST(Registry, ReadsFiles) {
  const std::string path = "tests/golden/dualpipe_r4_m10.csv";
  const Schedule schedule = builtin_registry().make(path, {4, 10});
  EXPECT_EQ(schedule.name, path);
  EXPECT_EQ(schedule.rows, generate_dualpipe({4, 10}).rows);
}

TEST(Registry, RefusesAFileOrGeneratorOfAnotherSize) {
  const std::string path = "tests/golden/dualpipe_r4_m10.csv";
  EXPECT_EQ(refusal_of([&] {
              builtin_registry().make(path, {8, 10});
            }),
            "[" + path + "] pipeline_model_parallel_size must be 4, which the schedule is made for, got 8");
  EXPECT_EQ(refusal_of([&] {
              builtin_registry().make(path, {4, 12});
            }),
            "[" + path + "] num_microbatches must be 10, which the schedule is made for, got 12");
  Registry registry;
  registry.add("stubborn", [](const ScheduleSpec&) { return all_forwards_first({2, 2}); });
  EXPECT_EQ(refusal_of([&] {
              registry.make("stubborn", {2, 3});
            }),
            "[stubborn] num_microbatches must be 2, which the schedule is made for, got 3");
}

}  // namespace
}  // namespace dualpipe
