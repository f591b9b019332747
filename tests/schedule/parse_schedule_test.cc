#include <gtest/gtest.h>

#include "plugin/schedule/generators.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

constexpr const char* kTwoRanks = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

struct FileCase {
  const char* name;
  std::string csv;
};

class SameFile : public testing::TestWithParam<FileCase> {};

TEST_P(SameFile, IsReadAsOneFOneBOfTwoRanks) {
  const Schedule schedule = parse_schedule(GetParam().csv, "plan.csv");
  EXPECT_EQ(schedule.name, "plan.csv");
  EXPECT_EQ(schedule.num_microbatches, 2);
  EXPECT_EQ(schedule.rows, generate_1f1b({2, 2}).rows);
  EXPECT_TRUE(schedule.placement == Placement::loop(2));
}

INSTANTIATE_TEST_SUITE_P(
    Table, SameFile,
    testing::Values(FileCase{"Plain", kTwoRanks}, FileCase{"NoNewlineAtTheEnd", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"},
                    FileCase{"CarriageReturns", "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"},
                    FileCase{"ByteOrderMark", std::string("\xEF\xBB\xBF") + kTwoRanks},
                    FileCase{"Spaces", " 0F0 , 0F1,\t0B0,0B1 \n1F0,1B0,1F1,1B1\n"},
                    FileCase{"IdleSlots", "0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1,\n"},
                    FileCase{"BlankLinesAtTheEnd", std::string(kTwoRanks) + "\n \r\n\n"},
                    // Communication is lowered anew.
                    FileCase{"Lowered",
                             "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0REDUCE_GRAD,"
                             "0WAIT_REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1WAIT_SEND_B1\n"}),
    [](const auto& info) { return info.param.name; });

struct InferCase {
  const char* name;
  const char* csv;
  Placement placement;
};

class Inferred : public testing::TestWithParam<InferCase> {};

TEST_P(Inferred, PlacementIsTheOneMostActionsAgreeWith) {
  EXPECT_TRUE(parse_schedule(GetParam().csv, "plan.csv").placement == GetParam().placement);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Inferred,
    testing::Values(InferCase{"Loop", "0F0,0B0\n1F0,1B0\n", Placement::loop(2)},
                    InferCase{"LoopOfTwoChunks", "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", Placement::loop(2, 2)},
                    InferCase{"Vee", "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", Placement::vee(2)},
                    InferCase{"Custom", "1F0,1B0\n0F0,2F0,2B0,0B0\n", Placement::custom(2, {1, 0, 1})},
                    InferCase{"Bidirectional", "0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n", Placement::bidirectional(2, 2)},
                    // One action on the wrong rank is left for validate() to point at.
                    InferCase{"Stray", "0F0,0F1,1F1,0B0,0B1\n1F0,1B0,1B1\n", Placement::loop(2)},
                    InferCase{"StrayOfTwoDirections", "0F0,1F1,1B1,0B0,0F1\n1F0,1B0,0B1\n",
                              Placement::bidirectional(2, 2)}),
    [](const auto& info) { return info.param.name; });

struct BadFileCase {
  const char* name;
  const char* csv;
  const char* message;
};

class BadFile : public testing::TestWithParam<BadFileCase> {};

TEST_P(BadFile, IsRefusedWithThePlace) {
  EXPECT_EQ(refusal_of([] { parse_schedule(GetParam().csv, "plan.csv"); }), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadFile,
    testing::Values(
        BadFileCase{"Empty", "", "[plan.csv] a schedule must hold compute actions, one line per rank, got none"},
        BadFileCase{"BlankOnly", "\n\n",
                    "[plan.csv] a schedule must hold compute actions, one line per rank, got none"},
        BadFileCase{"CommunicationOnly", "0SEND_F0\n1RECV_F0\n",
                    "[plan.csv] a schedule must hold compute actions, one line per rank, got none"},
        BadFileCase{
            "BadCell", "0F0,0B0\n1F0,,1Q0\n",
            "[plan.csv] rank 1, column 2: a cell must be <stage><kind><micro-batch> like 0F7, <stage><kind> like "
            "0REDUCE_GRAD, or a pair like (0F7;7B3)OVERLAP_F_B, got \"1Q0\""},
        BadFileCase{"StageBeyondSixteenBits", "0F0,0B0\n70000F0\n",
                    "[plan.csv] rank 1, column 0: a stage must be at most 65535, got \"70000F0\""},
        BadFileCase{
            "SlipOfThePen", "0F0,0B0\n1F0,,1B2000000000\n",
            "[plan.csv] rank 1, column 2: stages and micro-batches must be below the file's number of actions = "
            "4, got \"1B2000000000\""},
        BadFileCase{"MissingStage", "0F0,0B0\n2F0,2B0\n",
                    "[plan.csv] stages must be numbered from 0 without a gap, stage 1 of 3 stands nowhere"},
        BadFileCase{"IdleRank", "0F0,0B0\n\n1F0,1B0\n",
                    "[plan.csv] each line must be the row of a rank that holds a stage of its own, line 2 of 3 holds "
                    "none"}),
    [](const auto& info) { return info.param.name; });

TEST(ReadSchedule, AFileThatIsNotThereIsNamed) {
  EXPECT_EQ(refusal_of([] { read_schedule("no/such/plan.csv"); }),
            "[no/such/plan.csv] a schedule must be a file that can be read, got none");
}

TEST(ReadSchedule, AFolderIsNoFile) {
  EXPECT_EQ(refusal_of([] { read_schedule("tests/golden"); }),
            "[tests/golden] a schedule must be a file that can be read, got none");
}

}  // namespace
}  // namespace dualpipe
