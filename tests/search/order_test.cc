// What the parts of the search promise: changes, slots, first orders, the bound.
#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "plugin/search/divide_stages.h"
#include "plugin/search/first_orders.h"
#include "plugin/search/improve.h"
#include "plugin/search/mutate.h"
#include "plugin/search/slots.h"
#include "tests/search/random_orders.h"

namespace dualpipe::search {
namespace {

using testing::ElementsAre;

// F, B or I, and W (or B) of each lane.
std::map<int, std::vector<int>> count_parts(const Word& word) {
  std::map<int, std::vector<int>> parts;
  for (const Letter& letter : word) {
    const int lane = letter.backward_lane();
    parts.try_emplace(letter.lane, 3, 0).first->second[0] += letter.has_forward();
    parts.try_emplace(lane, 3, 0).first->second[1] += letter.has_backward();
    parts[lane][2] += letter.frees();
  }
  return parts;
}

TEST(Mutate, LosesNothing) {
  int changed = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    Words words = sequential_order(drawn.lanes);
    const Words before = words;
    for (int i = 0; i < 300; ++i) {
      const int rank = random.below(drawn.lanes.ranks());
      const Word last = words[rank];
      const bool did = mutate(words[rank], random);
      ASSERT_TRUE(did || words[rank] == last) << drawn.text;
      changed += words[rank] != last;
    }
    for (int rank = 0; rank < drawn.lanes.ranks(); ++rank) {
      ASSERT_EQ(count_parts(words[rank]), count_parts(before[rank])) << drawn.text << ", seed " << seed;
    }
  }
  EXPECT_GT(changed, 20'000);
}

bool can_run(const Lanes& lanes, const Words& words) {
  Evaluator evaluator(lanes);
  std::vector<double> busy(lanes.ranks(), 0);
  for (int rank = 0; rank < lanes.ranks(); ++rank) busy[rank] = evaluator.check_word(rank, words[rank]).busy;
  return evaluator.evaluate(words, busy).makespan != kNever;
}

// What passes the quick checks is valid with two slots, and what does not is not, but for pairs that take two messages
// of one edge where validation counts the first as taken.
TEST(Slots, AndMirrorsAreWhatValidationAsks) {
  int few = 0;
  int many = 0;
  int stricter = 0;
  for (int seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    const Words words = draw_words(drawn.lanes, random, random.below(40));
    if (!can_run(drawn.lanes, words)) continue;
    SlotCheck slots(drawn.lanes);
    bool holds = mirrors_agree(drawn.lanes, words);
    for (int rank = 0; rank < drawn.lanes.ranks(); ++rank) holds = holds && slots.holds(words, rank);
    const bool sound = is_sound(drawn.lanes, words);
    ASSERT_TRUE(sound || !holds) << drawn.text << ", seed " << seed;
    few += holds;
    many += !sound;
    stricter += sound && !holds;
  }
  EXPECT_GT(few, 300);
  EXPECT_GT(many, 50);
  EXPECT_LT(stricter, 10);
}

TEST(FirstOrders, FitWhateverTheLimit) {
  for (int seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    SCOPED_TRACE(drawn.text + ", seed " + std::to_string(seed));
    ASSERT_TRUE(is_sound(drawn.lanes, sequential_order(drawn.lanes)));
    for (const bool split : {true, false}) {
      const std::optional<Words> greedy = greedy_order(drawn.lanes, {.backward_first = seed % 2 == 0, .split = split});
      ASSERT_TRUE(greedy || drawn.lanes.placement.is_bidirectional());
      ASSERT_TRUE(!greedy || can_run(drawn.lanes, *greedy));
    }
  }
}

TEST(LowerBound, IsNeverAboveAnOrder) {
  for (int seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    const Words words = draw_words(drawn.lanes, random, random.below(60));
    Evaluator evaluator(drawn.lanes);
    std::vector<double> busy(drawn.lanes.ranks(), 0);
    for (int rank = 0; rank < drawn.lanes.ranks(); ++rank) busy[rank] = evaluator.check_word(rank, words[rank]).busy;
    ASSERT_LE(lower_bound(drawn.lanes), evaluator.evaluate(words, busy).makespan) << drawn.text << ", seed " << seed;
  }
}

TEST(LowerBound, IsReachedWhereARankNeverWaits) {
  const Placement placement = Placement::vee(4);
  EXPECT_EQ(lower_bound(Lanes(placement, 10, {}, {})), 63);  // Rank 3 begins at 3 and works for 60.
  EXPECT_EQ(lower_bound(Lanes(placement, 1, {}, {})), 16);   // One micro-batch: 8 F and 8 I.
}

TEST(DivideStages, SumsNeighboursAndDividesEvenly) {
  CostModel cost;
  cost.latency = 0.5;
  cost.per_stage = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const CostModel whole = divide_costs(cost, 2, 1);
  EXPECT_THAT(whole.per_stage, ElementsAre(StageCost{6, 8, 10, 12}));
  EXPECT_EQ(whole.latency, 0.5);
  EXPECT_THAT(divide_costs(cost, 2, 4).per_stage, ElementsAre(StageCost{0.5, 1, 1.5, 2}, StageCost{0.5, 1, 1.5, 2},
                                                              StageCost{2.5, 3, 3.5, 4}, StageCost{2.5, 3, 3.5, 4}));
  EXPECT_EQ(divide_costs({}, 4, 8).uniform, (StageCost{0.5, 0.5, 0.5, 1.5}));
  EXPECT_EQ(divide_bytes({{8, 0, 0, 4}, {16, 0, 0, 2}}, 1)[0].parameters, 24);
  EXPECT_EQ(divide_bytes({{8, 0, 0, 4}, {16, 0, 0, 2}}, 4)[3].activations, 1);
}

}  // namespace
}  // namespace dualpipe::search
