#include "plugin/schedule/lower.h"

#include <gtest/gtest.h>

#include "plugin/schedule/generators.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

using Lines = std::vector<std::string>;

Lines lines(const std::vector<Row>& rows) {
  Lines lines;
  for (const Row& row : rows) {
    lines.push_back(print_row(row));
  }
  return lines;
}

struct LowerCase {
  const char* name;
  const char* before;
  LowerOptions options;
  Lines after;
};

class Lower : public testing::TestWithParam<LowerCase> {};

TEST_P(Lower, AddsWhatIsWrittenByHand) {
  EXPECT_EQ(lines(lower(parse_schedule(GetParam().before, "plan"), GetParam().options).rows), GetParam().after);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Lower,
    testing::Values(
        // One rank has nobody to talk to.
        LowerCase{"OneRank", "0F0,0B0,0F1,0B1", {}, {"0F0,0B0,0F1,0B1,0REDUCE_GRAD"}},
        // 1F1B, P=2, M=2. RECV_B waits for the own F, which gives its shapes; B1 comes back and proves F1 and all
        // before it; nothing comes back behind the last B.
        LowerCase{"OneFOneB",
                  "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
                  {},
                  {"0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0RECV_B1,0B0,0WAIT_SEND_F0,0B1,0WAIT_SEND_F1,0REDUCE_GRAD",
                   "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1"}},
        // With one slot a receive follows the action that empties it.
        LowerCase{"OneSlot",
                  "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
                  {.slots = 1},
                  {"0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0WAIT_SEND_F0,0B1,0WAIT_SEND_F1,0REDUCE_GRAD",
                   "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1"}},
        // DualPipe, P=2, M=4. 1F3 is consumed beside 0B0, and proves 0F0, which rank 1 consumed before it sent 1F3.
        LowerCase{"DualPipe",
                  "0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1\n"
                  "0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3",
                  {},
                  {"1RECV_F2,1RECV_F3,0F0,0SEND_F0,1F2,0RECV_B0,0F1,0SEND_F1,1B2,1SEND_B2,(1F3;0B0)OVERLAP_F_B,"
                   "0RECV_B1,0WAIT_SEND_F0,1B3,1SEND_B3,1REDUCE_GRAD,0I1,0WAIT_SEND_F1,1WAIT_SEND_B2,0W1,0REDUCE_GRAD,"
                   "1WAIT_SEND_B3",
                   "1RECV_F0,1RECV_F1,0F2,0SEND_F2,1F0,0RECV_B2,0F3,0SEND_F3,1B0,1SEND_B0,(1F1;0B2)OVERLAP_F_B,"
                   "0RECV_B3,0WAIT_SEND_F2,1B1,1SEND_B1,1REDUCE_GRAD,0I3,0WAIT_SEND_F3,1WAIT_SEND_B0,0W3,0REDUCE_GRAD,"
                   "1WAIT_SEND_B1"}},
        // The turn of the V is no message.
        LowerCase{"Vee",
                  "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0",
                  {},
                  {"3RECV_F0,0F0,0SEND_F0,0RECV_B0,3F0,0WAIT_SEND_F0,3B0,3SEND_B0,3REDUCE_GRAD,0B0,3WAIT_SEND_B0,"
                   "0REDUCE_GRAD",
                   "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,2WAIT_SEND_F0,2REDUCE_GRAD,1B0,1SEND_B0,1REDUCE_GRAD,"
                   "1WAIT_SEND_B0"}},
        // Split backwards: I sends, the last W reduces.
        LowerCase{"SplitBackward",
                  "0F0,0I0,0W0\n1F0,1I0,1W0",
                  {},
                  {"0F0,0SEND_F0,0RECV_B0,0I0,0WAIT_SEND_F0,0W0,0REDUCE_GRAD",
                   "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD,1WAIT_SEND_B0"}},
        LowerCase{"NoReduction",
                  "0F0,0B0\n1F0,1B0",
                  {.reduce_grad = false},
                  {"0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0", "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0"}},
        // Without backwards there is nothing that could prove a send.
        LowerCase{"ForwardOnly",
                  "0F0,0F1\n1F0,1F1",
                  {},
                  {"0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F0,0WAIT_SEND_F1", "1RECV_F0,1RECV_F1,1F0,1F1"}}),
    [](const auto& info) { return info.param.name; });

TEST(Lower, KeepsWhatTheScheduleSays) {
  const Program program = lower(generate_dualpipev({2, 5}), {.slots = 3});
  EXPECT_EQ(program.name, "dualpipev");
  EXPECT_TRUE(program.placement == Placement::vee(2));
  EXPECT_EQ(program.num_microbatches, 5);
  EXPECT_EQ(program.slots, 3);
  EXPECT_EQ(program.deferred_weight, std::vector<Row>(2));
}

TEST(Lower, LeavesTheClosingWeightGradientsToTheHook) {
  const Schedule schedule = parse_schedule("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1", "plan");
  const Program program = lower(schedule, {.defer_tail_weight_gradients = true});
  EXPECT_EQ(lines(program.deferred_weight), (Lines{"0W1", "1W1"}));
  EXPECT_EQ(print_row(program.rows[0]),
            "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0RECV_B1,0I0,0WAIT_SEND_F0,0W0,0I1,0WAIT_SEND_F1");
}

TEST(Lower, ReducesTheStagesThatKeepTheirWeightGradients) {
  const Program program = lower(generate_dualpipe({2, 4}), {.defer_tail_weight_gradients = true});
  EXPECT_EQ(lines(program.deferred_weight), (Lines{"0W1", "0W3"}));
  for (const Row& row : program.rows) {
    EXPECT_NE(print_row(row).find("1REDUCE_GRAD"), std::string::npos);
    EXPECT_EQ(print_row(row).find("0REDUCE_GRAD"), std::string::npos);
  }
}

TEST(Lower, DefersNothingWhereBackwardsAreWhole) {
  const Schedule schedule = generate_1f1b({2, 3});
  const Program program = lower(schedule, {.defer_tail_weight_gradients = true});
  EXPECT_EQ(program.rows, lower(schedule).rows);
  EXPECT_EQ(program.deferred_weight, std::vector<Row>(2));
}

struct RefusalCase {
  const char* name;
  const char* rows;
  const char* message;
};

class LowerRefusal : public testing::TestWithParam<RefusalCase> {};

TEST_P(LowerRefusal, SaysTheCellAndTheRule) {
  Schedule schedule{"plan", Placement::loop(2), 2, {}};
  const std::string rows = GetParam().rows;
  schedule.rows = {parse_row(rows.substr(0, rows.find('\n'))), parse_row(rows.substr(rows.find('\n') + 1))};
  EXPECT_EQ(refusal_of([&] { lower(schedule); }), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, LowerRefusal,
    testing::Values(
        RefusalCase{"Repeated", "0F0,0F0\n1F0", "[plan] rank 0, column 1: each action must stand once, got \"0F0\""},
        RefusalCase{"WholeAndSplit", "0F0,0I0,0B0\n1F0",
                    "[plan] rank 0, column 2: each action must stand once, got \"0B0\""},
        RefusalCase{"RepeatedWeight", "0F0,0I0,0W0,0W0\n1F0",
                    "[plan] rank 0, column 3: each action must stand once, got \"0W0\""},
        RefusalCase{"NobodyComputesOnIt", "0F0,0F1\n1F0",
                    "[plan] rank 0, column 1: 1F1 must stand in the schedule as well, got \"0F1\""},
        RefusalCase{"NobodyComputesIt", "0F0\n1F0,1F1",
                    "[plan] rank 1, column 1: 0F1 must stand in the schedule as well, got \"1F1\""},
        RefusalCase{"NoGradient", "0F0,0B0\n1F0",
                    "[plan] rank 0, column 1: 1B0 must stand in the schedule as well, got \"0B0\""},
        RefusalCase{"BackwardFirst", "0F0,0B0\n1B0,1F0",
                    "[plan] rank 1, column 0: a backward must stand behind its forward, got \"1B0\""},
        RefusalCase{"WrongRank", "0F0,1F0\n1F1",
                    "[plan] rank 0, column 1: the action of rank 1 must stand there, got \"1F0\""},
        RefusalCase{"NoSuchStage", "0F0\n2F0",
                    "[plan] rank 1, column 0: stages must be below 2 and micro-batches below 2, got \"2F0\""},
        RefusalCase{"NoSuchMicrobatch", "0F0,0F2\n1F0",
                    "[plan] rank 0, column 1: stages must be below 2 and micro-batches below 2, got \"0F2\""},
        RefusalCase{"Communication", "0F0,0SEND_F0\n1F0",
                    "[plan] rank 0, column 1: a schedule must hold compute actions only, got \"0SEND_F0\""}),
    [](const auto& info) { return info.param.name; });

TEST(LowerRefusal, SlotsAndRowsAreCounted) {
  EXPECT_EQ(refusal_of([] { lower(generate_1f1b({2, 2}), {.slots = 0}); }), "[1f1b] slots must be at least 1, got 0");
  Schedule schedule = generate_1f1b({2, 2});
  schedule.rows.pop_back();
  EXPECT_EQ(refusal_of([&] { lower(schedule); }), "[1f1b] a schedule must have a row for each of its 2 ranks, got 1");
  EXPECT_EQ(refusal_of([] {
              lower(Schedule{"none", Placement::loop(1), 0, {{}}});
            }),
            "[none] num_microbatches must be at least 1, got 0");
}

TEST(ForwardOnly, KeepsTheOrderOfTheForwards) {
  const Schedule schedule = forward_only(generate_dualpipe({2, 4}));
  EXPECT_EQ(schedule.name, "dualpipe");
  EXPECT_EQ(schedule.num_microbatches, 4);
  EXPECT_TRUE(schedule.placement == Placement::bidirectional(2, 4));
  EXPECT_EQ(lines(schedule.rows), (Lines{"0F0,1F2,0F1,1F3", "0F2,1F0,0F3,1F1"}));
}

struct SlotsCase {
  const char* schedule;
  ScheduleSpec spec;
  int least;
};

void PrintTo(const SlotsCase& slots, std::ostream* out) {
  *out << slots.schedule << " P=" << slots.spec.pipeline_model_parallel_size << " M=" << slots.spec.num_microbatches;
}

class LeastSlots : public testing::TestWithParam<SlotsCase> {};

TEST_P(LeastSlots, IsWhatTheOrderOfConsumptionNeeds) {
  EXPECT_EQ(least_slots(builtin_registry().make(GetParam().schedule, GetParam().spec)), GetParam().least);
}

INSTANTIATE_TEST_SUITE_P(Table, LeastSlots,
                         testing::Values(SlotsCase{"1f1b", {1, 4}, 1}, SlotsCase{"1f1b", {8, 20}, 1},
                                         SlotsCase{"zb1p", {8, 20}, 1}, SlotsCase{"interleaved_1f1b", {4, 8}, 1},
                                         // One slot deadlocks DualPipe from P=6 and DualPipeV from R=3; two are enough.
                                         SlotsCase{"dualpipe", {2, 4}, 1}, SlotsCase{"dualpipe", {4, 8}, 1},
                                         SlotsCase{"dualpipe", {6, 12}, 2}, SlotsCase{"dualpipe", {8, 20}, 2},
                                         SlotsCase{"dualpipe", {16, 32}, 2}, SlotsCase{"dualpipe", {32, 80}, 2},
                                         SlotsCase{"dualpipev", {1, 2}, 1}, SlotsCase{"dualpipev", {2, 5}, 1},
                                         SlotsCase{"dualpipev", {3, 6}, 2}, SlotsCase{"dualpipev", {8, 16}, 2}));

TEST(LeastSlots, CountsWhatWasSentBefore) {
  // Rank 1 takes the last of four messages first.
  const Schedule schedule = parse_schedule("0F0,0F1,0F2,0F3\n1F3,1F0,1F1,1F2", "plan");
  EXPECT_EQ(least_slots(schedule), 4);
}

}  // namespace
}  // namespace dualpipe
