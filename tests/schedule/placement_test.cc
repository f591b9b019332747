#include "plugin/schedule/placement.h"

#include <gtest/gtest.h>

#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

using Ints = std::vector<int>;

struct TableCase {
  const char* name;
  Placement placement;
  std::vector<Ints> stages_of;  // By rank.
  std::vector<Ints> ranks_of;   // By stage.
};

class PlacementTable : public testing::TestWithParam<TableCase> {};

TEST_P(PlacementTable, StagesAndRanksAgree) {
  const auto& [name, placement, stages_of, ranks_of] = GetParam();
  ASSERT_EQ(placement.ranks(), static_cast<int>(stages_of.size()));
  ASSERT_EQ(placement.stages(), static_cast<int>(ranks_of.size()));
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    EXPECT_EQ(placement.stages_of(rank), stages_of[rank]) << "rank " << rank;
  }
  for (int stage = 0; stage < placement.stages(); ++stage) {
    EXPECT_EQ(placement.ranks_of(stage), ranks_of[stage]) << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, PlacementTable,
    testing::Values(TableCase{"OneRank", Placement::loop(1), {{0}}, {{0}}},
                    TableCase{"Loop", Placement::loop(3), {{0}, {1}, {2}}, {{0}, {1}, {2}}},
                    TableCase{"LoopOfTwoChunks", Placement::loop(2, 2), {{0, 2}, {1, 3}}, {{0}, {1}, {0}, {1}}},
                    TableCase{"VeeOfOne", Placement::vee(1), {{0, 1}}, {{0}, {0}}},
                    TableCase{"Vee", Placement::vee(3), {{0, 5}, {1, 4}, {2, 3}}, {{0}, {1}, {2}, {2}, {1}, {0}}},
                    // The mirror holds the same stages, its near one first.
                    TableCase{"Bidirectional",
                              Placement::bidirectional(4, 8),
                              {{0, 3}, {1, 2}, {2, 1}, {3, 0}},
                              {{0, 3}, {1, 2}, {1, 2}, {0, 3}}},
                    TableCase{"Custom", Placement::custom(2, {1, 0, 0, 1}), {{1, 2}, {0, 3}}, {{1}, {0}, {0}, {1}}}),
    [](const auto& info) { return info.param.name; });

TEST(Placement, OneDirectionRunsEveryMicroBatchOnTheSameRank) {
  const Placement vee = Placement::vee(2);
  EXPECT_FALSE(vee.is_bidirectional());
  for (const int micro_batch : {0, 1, 7}) {
    EXPECT_EQ(vee.direction(micro_batch), 0);
    EXPECT_EQ(vee.rank_of(1, micro_batch), 1);
    EXPECT_EQ(vee.rank_of(3, micro_batch), 0);
    EXPECT_EQ(vee.input_rank(micro_batch), 0);
    EXPECT_EQ(vee.loss_rank(micro_batch), 0);
  }
  EXPECT_EQ(vee.mirror_of(0), std::nullopt);
}

TEST(Placement, TwoDirectionsMeetInTheMiddle) {
  const Placement both = Placement::bidirectional(4, 10);
  EXPECT_TRUE(both.is_bidirectional());
  EXPECT_EQ(both.direction(4), 0);
  EXPECT_EQ(both.direction(5), 1);
  EXPECT_EQ(both.rank_of(1, 4), 1);
  EXPECT_EQ(both.rank_of(1, 5), 2);
  EXPECT_EQ(both.input_rank(4), 0);
  EXPECT_EQ(both.loss_rank(4), 3);
  EXPECT_EQ(both.input_rank(9), 3);
  EXPECT_EQ(both.loss_rank(9), 0);
  EXPECT_EQ(both.mirror_of(0), 3);
  EXPECT_EQ(both.mirror_of(2), 1);
}

TEST(Placement, EqualityIsByMapping) {
  EXPECT_EQ(Placement::custom(2, {0, 1, 1, 0}), Placement::vee(2));
  EXPECT_EQ(Placement::custom(2, {0, 1, 0, 1}), Placement::loop(2, 2));
  EXPECT_FALSE(Placement::vee(2) == Placement::loop(2, 2));
  EXPECT_FALSE(Placement::bidirectional(2, 4) == Placement::bidirectional(2, 6));
}

struct RefusalCase {
  Placement (*make)();
  const char* message;
};

class PlacementRefusal : public testing::TestWithParam<RefusalCase> {};

TEST_P(PlacementRefusal, SaysTheRule) { EXPECT_EQ(refusal_of(GetParam().make), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Table, PlacementRefusal,
    testing::Values(
        RefusalCase{[] { return Placement::loop(0); }, "[placement] ranks must be at least 1, got 0"},
        RefusalCase{[] { return Placement::loop(2, 0); }, "[placement] chunks per rank must be at least 1, got 0"},
        RefusalCase{[] { return Placement::loop(65536); }, "[placement] ranks must be at most 65535, got 65536"},
        RefusalCase{[] { return Placement::vee(32768); }, "[placement] ranks must be at most 32767, got 32768"},
        RefusalCase{[] { return Placement::bidirectional(3, 8); },
                    "[placement] ranks of a bidirectional placement must be even, got 3; 4 works"},
        RefusalCase{[] { return Placement::bidirectional(4, 9); },
                    "[placement] num_microbatches of a bidirectional placement must be even, got 9; 10 works"},
        RefusalCase{[] {
                      return Placement::custom(2, {0, 2});
                    },
                    "[placement] the rank of stage 1 must be in 0..1, got 2"},
        RefusalCase{[] {
                      return Placement::custom(2, {0, -1});
                    },
                    "[placement] the rank of stage 1 must be in 0..1, got -1"},
        RefusalCase{[] {
                      return Placement::custom(3, {0, 2, 0});
                    },
                    "[placement] every rank must hold a stage, rank 1 of 3 holds none"}));

}  // namespace
}  // namespace dualpipe
