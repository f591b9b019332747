#include "plugin/analysis/simulate.h"

#include <gmock/gmock.h>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/analysis/slow_reference.h"

namespace dualpipe {
namespace {

using testing::Each;
using testing::ElementsAre;

Schedule make(const std::string& name, int ranks, int num_microbatches, int chunks = 2) {
  return builtin_registry().make(name, {ranks, num_microbatches, chunks});
}

std::vector<double> idle_of(const Timeline& timeline) {
  std::vector<double> idle;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    idle.push_back(timeline.idle(static_cast<int>(rank)));
  }
  return idle;
}

TEST(Simulate, DualpipeOnEightRanksHasThePublishedFigures) {
  const Timeline timeline = simulate(make("dualpipe", 8, 20));
  EXPECT_EQ(timeline.makespan(), 66);
  EXPECT_THAT(idle_of(timeline), Each(6));
  EXPECT_THAT(timeline.peak_activations, Each(9));
  EXPECT_DOUBLE_EQ(timeline.utilization(), 60.0 / 66.0);
}

TEST(Simulate, OverlapShortensDualpipe) {
  const Timeline timeline = simulate(make("dualpipe", 8, 20), parse_cost("overlapped=2.25"));
  EXPECT_EQ(timeline.makespan(), 55.5);
  EXPECT_THAT(idle_of(timeline), ElementsAre(2.25, 3, 3.75, 3.75, 3.75, 3.75, 3, 2.25));
}

TEST(Simulate, LatencyDelaysWhatCrossesRanksAlone) {
  const Timeline timeline = simulate(parse_schedule("0F0,0B0\n1F0,1B0\n", "hand"), parse_cost("latency=0.5"));
  EXPECT_EQ(timeline.ranks[1][0].start, 1.5);
  EXPECT_EQ(timeline.ranks[1][1].start, 2.5);
  EXPECT_EQ(timeline.ranks[0][1].start, 5);
  EXPECT_EQ(timeline.makespan(), 7);
}

TEST(Simulate, CostsMayDifferPerStage) {
  CostModel cost;
  cost.per_stage = {{1, 1, 1, 3}, {2, 3, 4, 9}};
  const Timeline timeline = simulate(parse_schedule("0F0,0B0\n1F0,1B0\n", "hand"), cost);
  EXPECT_EQ(timeline.busy(0), 3);
  EXPECT_EQ(timeline.busy(1), 9);
  EXPECT_EQ(timeline.makespan(), 12);
}

TEST(Simulate, AgreesWithTheSlowReference) {
  const struct {
    const char* name;
    int ranks;
    int num_microbatches;
  } cases[] = {{"1f1b", 4, 7},      {"1f1b", 4, 2},      {"interleaved_1f1b", 3, 6}, {"zb1p", 4, 9},
               {"dualpipe", 2, 4},  {"dualpipe", 8, 20}, {"dualpipe", 6, 14},        {"dualpipev", 1, 3},
               {"dualpipev", 3, 7}, {"dualpipev", 4, 10}};
  for (const char* costs :
       {"forward=1", "overlapped=2.25", "forward=1,backward_input=0.5,backward_weight=1.75,latency=0.25",
        "forward=2,backward_input=3,backward_weight=1,overlapped=4,latency=2"}) {
    for (const auto& [name, ranks, num_microbatches] : cases) {
      const Schedule schedule = make(name, ranks, num_microbatches);
      const CostModel cost = parse_cost(costs);
      const Timeline timeline = simulate(schedule, cost);
      const std::vector<std::vector<double>> starts = slow_simulate(schedule, cost);
      ASSERT_EQ(starts.size(), timeline.ranks.size());
      for (std::size_t rank = 0; rank < starts.size(); ++rank) {
        ASSERT_EQ(starts[rank].size(), timeline.ranks[rank].size());
        for (std::size_t column = 0; column < starts[rank].size(); ++column) {
          const Span& span = timeline.ranks[rank][column];
          EXPECT_EQ(span.start, starts[rank][column]) << name << " " << costs << " rank " << rank << " " << column;
          EXPECT_EQ(span.action, schedule.rows[rank][column]);
          EXPECT_EQ(span.end, span.start + cost.duration(span.action));
        }
      }
    }
  }
}

TEST(Simulate, TotalsAreThoseOfTheTimelines) {
  const std::vector<CostModel> costs = {CostModel{}, parse_cost("overlapped=2.25,latency=0.5"),
                                        parse_cost("forward=0")};
  for (const char* name : {"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    const Schedule schedule = make(name, 4, 12);
    const std::vector<Totals> totals = simulate_totals(schedule, costs);
    ASSERT_EQ(totals.size(), costs.size());
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const Timeline timeline = simulate(schedule, costs[i]);
      EXPECT_EQ(totals[i].makespan, timeline.makespan()) << name;
      EXPECT_DOUBLE_EQ(totals[i].utilization(), timeline.utilization()) << name;
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(totals[i].busy[rank], timeline.busy(rank)) << name << " rank " << rank;
      }
    }
  }
  EXPECT_TRUE(simulate_totals(make("1f1b", 2, 2), {}).empty());
}

TEST(Simulate, CountsAPairsForwardFirst) {
  EXPECT_THAT(peak_activations(parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1", "hand")), ElementsAre(2));
  EXPECT_THAT(peak_activations(parse_schedule("0F0,0I0,0F1,0W0,0I1,0W1", "hand")), ElementsAre(2));
  EXPECT_THAT(peak_activations(parse_schedule("0F0,0B0,0F1,0B1", "hand")), ElementsAre(1));
}

TEST(Simulate, RefusesRanksThatWaitForEachOther) {
  Schedule schedule = make("1f1b", 2, 2);
  std::swap(schedule.rows[0][1], schedule.rows[0][2]);  // 0B0 before 0F1.
  std::swap(schedule.rows[1][0], schedule.rows[1][2]);  // 1F1 before 1F0.
  try {
    simulate(schedule);
    FAIL() << "no error";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(
        error.what(),
        "[1f1b] the ranks wait for each other: rank 0 at 0B0 needs 1B0, which never runs; see 'dualpipe check'");
  }
}

TEST(Simulate, RefusesCostsForAnotherNumberOfStages) {
  CostModel cost;
  cost.per_stage.resize(3);
  try {
    simulate(make("1f1b", 2, 2), cost);
    FAIL() << "no error";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(error.what(), "[cost] per_stage must have one entry per stage = 2, got 3");
  }
}

}  // namespace
}  // namespace dualpipe
