#include "plugin/schedule/generators.h"

#include <gtest/gtest.h>

#include <map>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

std::vector<std::string> lines(const Schedule& schedule) {
  std::vector<std::string> lines;
  for (const Row& row : schedule.rows) {
    lines.push_back(print_row(row));
  }
  return lines;
}

struct RuleCase {
  const char* schedule;
  ScheduleSpec spec;
  const char* message;
};

void PrintTo(const RuleCase& rule, std::ostream* out) {
  *out << rule.schedule << " P=" << rule.spec.pipeline_model_parallel_size << " M=" << rule.spec.num_microbatches;
}

class GeneratorRule : public testing::TestWithParam<RuleCase> {};

TEST_P(GeneratorRule, IsSaidWithAValueThatWorks) {
  const auto& [schedule, spec, message] = GetParam();
  EXPECT_EQ(refusal_of([&] { builtin_registry().make(schedule, spec); }), message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, GeneratorRule,
    testing::Values(
        // Sizes that no schedule takes.
        RuleCase{"1f1b", {0, 4}, "[1f1b] pipeline_model_parallel_size must be at least 1, got 0"},
        RuleCase{"zb1p", {-2, 4}, "[zb1p] pipeline_model_parallel_size must be at least 1, got -2"},
        RuleCase{"1f1b", {4, 0}, "[1f1b] num_microbatches must be at least 1, got 0"},
        RuleCase{"dualpipe", {4, -8}, "[dualpipe] num_microbatches must be at least 1, got -8"},
        RuleCase{"1f1b", {65536, 4}, "[1f1b] pipeline_model_parallel_size must be at most 65535, got 65536"},
        RuleCase{"dualpipev", {32768, 4}, "[dualpipev] pipeline_model_parallel_size must be at most 32767, got 32768"},
        RuleCase{"1f1b", {1, 16777217}, "[1f1b] num_microbatches must be at most 16777216, got 16777217"},
        // DualPipe.
        RuleCase{"dualpipe", {3, 8}, "[dualpipe] pipeline_model_parallel_size must be even, got 3; 4 works"},
        RuleCase{"dualpipe", {1, 8}, "[dualpipe] pipeline_model_parallel_size must be even, got 1; 2 works"},
        RuleCase{"dualpipe", {4, 9}, "[dualpipe] num_microbatches must be even, got 9; 10 works"},
        RuleCase{"dualpipe", {8, 14}, "[dualpipe] num_microbatches must be at least 2 x ranks = 16, got 14"},
        // DualPipeV.
        RuleCase{"dualpipev", {4, 6}, "[dualpipev] num_microbatches must be at least 2 x ranks = 8, got 6"},
        RuleCase{"dualpipev", {1, 1}, "[dualpipev] num_microbatches must be at least 2 x ranks = 2, got 1"},
        // Interleaved 1F1B.
        RuleCase{"interleaved_1f1b",
                 {4, 6},
                 "[interleaved_1f1b] num_microbatches must be a multiple of pipeline_model_parallel_size = 4, got 6; 8 "
                 "works"},
        RuleCase{"interleaved_1f1b",
                 {4, 2},
                 "[interleaved_1f1b] num_microbatches must be a multiple of pipeline_model_parallel_size = 4, got 2; 4 "
                 "works"},
        RuleCase{"interleaved_1f1b",
                 {4, 8, 1},
                 "[interleaved_1f1b] virtual_pipeline_model_parallel_size must be at least 2, got 1"},
        RuleCase{"interleaved_1f1b",
                 {4, 8, 70000},
                 "[interleaved_1f1b] virtual_pipeline_model_parallel_size must be at most 65535, got 70000"}));

struct RowsCase {
  const char* name;
  const char* schedule;
  ScheduleSpec spec;
  std::vector<std::string> rows;
};

class SmallSchedule : public testing::TestWithParam<RowsCase> {};

TEST_P(SmallSchedule, IsAsWrittenByHand) {
  EXPECT_EQ(lines(builtin_registry().make(GetParam().schedule, GetParam().spec)), GetParam().rows);
}

INSTANTIATE_TEST_SUITE_P(
    Table, SmallSchedule,
    testing::Values(RowsCase{"OneRank", "1f1b", {1, 2}, {"0F0,0B0,0F1,0B1"}},
                    RowsCase{"OneFOneB",
                             "1f1b",
                             {3, 4},
                             {"0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3", "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3",
                              "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3"}},
                    // Fewer micro-batches than ranks: the warm-up is cut short.
                    RowsCase{"FewMicrobatches",
                             "1f1b",
                             {4, 2},
                             {"0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1", "2F0,2F1,2B0,2B1", "3F0,3B0,3F1,3B1"}},
                    RowsCase{"OneMicrobatch", "1f1b", {2, 1}, {"0F0,0B0", "1F0,1B0"}},
                    RowsCase{"ZeroBubbleOnOneRank", "zb1p", {1, 2}, {"0F0,0I0,0W0,0F1,0I1,0W1"}},
                    RowsCase{"ZeroBubbleOfOne", "zb1p", {3, 1}, {"0F0,0I0,0W0", "1F0,1I0,1W0", "2F0,2I0,2W0"}},
                    RowsCase{"ZeroBubbleOfFew",
                             "zb1p",
                             {4, 2},
                             {"0F0,0F1,0I0,0W0,0I1,0W1", "1F0,1F1,1I0,1I1,1W0,1W1", "2F0,2F1,2I0,2I1,2W0,2W1",
                              "3F0,3I0,3F1,3I1,3W0,3W1"}},
                    RowsCase{"InterleavedOnOneRank", "interleaved_1f1b", {1, 2}, {"0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1"}},
                    RowsCase{"InterleavedOfThreeChunks", "interleaved_1f1b", {1, 1, 3}, {"0F0,1F0,2F0,2B0,1B0,0B0"}}),
    [](const auto& info) { return info.param.name; });

// What a rank runs with directions in place of stages and micro-batches: lane 0 enters at the rank's near end.
std::vector<std::string> lanes(const Row& row, int near_stage, int first_of_near, int first_of_far) {
  std::vector<std::string> cells;
  const auto name = [&](const Op& op) {
    const bool near = op.stage == near_stage;
    return to_string(make_op(near ? 0 : 1, op.kind, op.micro_batch - (near ? first_of_near : first_of_far)));
  };
  for (const Action& action : row) {
    cells.push_back(name(action.op) + (action.paired ? "&" + name(*action.paired) : ""));
  }
  return cells;
}

TEST(DualPipe, IsDualPipeVUnfolded) {
  for (int half = 1; half <= 5; ++half) {
    for (int per_lane = 2 * half; per_lane <= 2 * half + 3; ++per_lane) {
      const Schedule folded = generate_dualpipev({half, per_lane});
      const Schedule unfolded = generate_dualpipe({2 * half, 2 * per_lane});
      for (int rank = 0; rank < half; ++rank) {
        const int mirror = 2 * half - 1 - rank;
        const auto expected = lanes(folded.rows[rank], rank, 0, 0);
        EXPECT_EQ(lanes(unfolded.rows[rank], rank, 0, per_lane), expected) << half << " " << per_lane << " " << rank;
        EXPECT_EQ(lanes(unfolded.rows[mirror], rank, per_lane, 0), expected) << half << " " << per_lane << " " << rank;
      }
    }
  }
}

// How often each (stage, kind) stands, pairs counted as their parts.
std::map<std::pair<int, Kind>, int> op_counts(const Schedule& schedule) {
  std::map<std::pair<int, Kind>, int> counts;
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      ++counts[{action.op.stage, action.op.kind}];
      if (action.paired) {
        ++counts[{action.paired->stage, action.paired->kind}];
      }
    }
  }
  return counts;
}

void expect_counts(const std::string& name, int ranks, int micro_batches, const std::vector<Kind>& kinds) {
  const Schedule schedule = builtin_registry().make(name, {ranks, micro_batches});
  std::map<std::pair<int, Kind>, int> expected;
  for (int stage = 0; stage < schedule.placement.stages(); ++stage) {
    for (const Kind kind : kinds) {
      expected[{stage, kind}] = micro_batches;
    }
  }
  EXPECT_EQ(op_counts(schedule), expected) << name << " P=" << ranks << " M=" << micro_batches;
}

const std::vector<Kind> kWhole = {Kind::kForward, Kind::kBackward};
const std::vector<Kind> kSplit = {Kind::kForward, Kind::kBackwardInput, Kind::kBackwardWeight};

// A single micro-batch makes the schedule hang.
TEST(FieldReport13, OneMicrobatchIsPlannedLikeAnyOther) {
  for (const int ranks : {2, 4}) {
    expect_counts("1f1b", ranks, 1, kWhole);
    expect_counts("zb1p", ranks, 1, kSplit);
    EXPECT_EQ(least_slots(generate_1f1b({ranks, 1})), 1);
    EXPECT_EQ(least_slots(generate_zb1p({ranks, 1})), 1);
  }
}

// Fewer micro-batches than stages hangs in warm-up instead of failing or working.
TEST(FieldReport14, FewMicrobatchesWorkOrAreRefusedWithTheRule) {
  expect_counts("1f1b", 4, 2, kWhole);
  expect_counts("zb1p", 4, 3, kSplit);
  EXPECT_EQ(refusal_of([] {
              generate_dualpipe({4, 6});
            }),
            "[dualpipe] num_microbatches must be at least 2 x ranks = 8, got 6");
  EXPECT_EQ(refusal_of([] {
              generate_dualpipev({4, 7});
            }),
            "[dualpipev] num_microbatches must be at least 2 x ranks = 8, got 7");
}

TEST(FieldReport14, DualPipeVTakesAnOddNumberOfMicrobatches) {
  const Schedule schedule = generate_dualpipev({4, 9});
  std::map<std::pair<int, Kind>, int> counts = op_counts(schedule);
  for (int stage = 0; stage < 8; ++stage) {
    EXPECT_EQ((counts[{stage, Kind::kForward}]), 9);
    EXPECT_EQ((counts[{stage, Kind::kBackward}] + counts[{stage, Kind::kBackwardInput}]), 9);
    EXPECT_EQ((counts[{stage, Kind::kBackwardWeight}]), (counts[{stage, Kind::kBackwardInput}]));
  }
}

// Single-stage schedules had no order table.
TEST(FieldReport80, EveryChunkHasMOperationsPerKind) {
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, 64}) {
      expect_counts("1f1b", ranks, micro_batches, kWhole);
      expect_counts("zb1p", ranks, micro_batches, kSplit);
    }
  }
}

}  // namespace
}  // namespace dualpipe
