#include "plugin/search/evaluate.h"

#include <gmock/gmock.h>

#include "plugin/analysis/simulate.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/search/random_orders.h"

namespace dualpipe::search {
namespace {

// Of drawn lanes, where a stage may cost what it likes.
CostModel cost_of(const Lanes& lanes) {
  CostModel cost;
  cost.per_stage.resize(lanes.placement.stages());
  for (const Lane& lane : lanes.lanes) {
    cost.per_stage[lane.stage] = {duration(lane, LetterKind::kForward), duration(lane, LetterKind::kBackwardInput),
                                  duration(lane, LetterKind::kBackwardWeight), duration(lane, LetterKind::kPair)};
    cost.latency = std::max(cost.latency, lane.previous_latency);
  }
  return cost;
}

std::string print(const Schedule& schedule) {
  std::string text;
  for (const Row& row : schedule.rows) text += print_row(row) + "\n";
  return text;
}

Score evaluate(const Lanes& lanes, const Words& words, double limit = kNever) {
  Evaluator evaluator(lanes);
  std::vector<double> busy;
  for (int rank = 0; rank < lanes.ranks(); ++rank) busy.push_back(evaluator.check_word(rank, words[rank]).busy);
  return evaluator.evaluate(words, busy, limit);
}

std::optional<Timeline> try_simulate(const Schedule& schedule, const CostModel& cost) {
  try {
    return simulate(schedule, cost);
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

TEST(Evaluate, IsSimulateToTheBit) {
  int ran = 0;
  for (int seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    const Words words = draw_words(drawn.lanes, random, random.below(60));
    const Schedule schedule = to_schedule(drawn.lanes, words);
    SCOPED_TRACE(drawn.text + ", seed " + std::to_string(seed) + "\n" + print(schedule));
    const Score score = evaluate(drawn.lanes, words);
    const std::optional<Timeline> timeline = try_simulate(schedule, cost_of(drawn.lanes));
    ASSERT_EQ(score.makespan != kNever, timeline.has_value());
    if (!timeline) continue;
    ++ran;
    double ends = 0;
    for (const std::vector<Span>& spans : timeline->ranks) ends += spans.empty() ? 0 : spans.back().end;
    ASSERT_EQ(score.makespan, timeline->makespan());
    ASSERT_EQ(score.ends, ends);
    ASSERT_EQ(evaluate(drawn.lanes, words, score.makespan).makespan, score.makespan);
    ASSERT_EQ(evaluate(drawn.lanes, words, score.makespan - 0.125).makespan, kNever);
    for (int rank = 0; rank < drawn.lanes.ranks() && drawn.lanes.max_activations; ++rank) {
      ASSERT_LE(timeline->peak_activations[rank], *drawn.lanes.max_activations);
    }
  }
  EXPECT_GT(ran, 500);  // The others wait for each other.
}

TEST(Evaluate, ValidationAgreesOnWhatCanRun) {
  for (int seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const DrawnLanes drawn = draw_lanes(random);
    const Words words = draw_words(drawn.lanes, random, random.below(60));
    const Schedule schedule = to_schedule(drawn.lanes, words);
    SCOPED_TRACE(drawn.text + ", seed " + std::to_string(seed) + "\n" + print(schedule));
    ASSERT_EQ(evaluate(drawn.lanes, words).makespan != kNever, validate(schedule).empty());
  }
}

struct WordCase {
  const char* name;
  const char* row;
  std::optional<int> max_activations;
  bool holds;
};

TEST(Evaluate, ChecksAWordByItself) {
  const WordCase cases[] = {
      {"as 1f1b", "0F0,0F1,0B0,0B1", std::nullopt, true},
      {"two are alive", "0F0,0F1,0B0,0B1", 2, true},
      {"one may be", "0F0,0F1,0B0,0B1", 1, false},
      {"a backward ahead of its forward", "0B0,0F0,0F1,0B1", std::nullopt, false},
      {"W ahead of its I", "0F0,0W0,0I0,0F1,0B1", std::nullopt, false},
      {"alive until its W", "0F0,0I0,0F1,0W0,0B1", 1, false},
      {"freed by its W", "0F0,0I0,0W0,0F1,0B1", 1, true},
      // In a pair the F counts first, and its B cannot be its own.
      {"a pair holds both", "0F0,(0F1;0B0)OVERLAP_F_B,0B1", 1, false},
      {"a pair of two micro-batches", "0F0,(0F1;0B0)OVERLAP_F_B,0B1", 2, true},
      {"a pair with its own F", "(0F0;0B0)OVERLAP_F_B,0F1,0B1", std::nullopt, false},
  };
  for (const WordCase& test : cases) {
    const Placement placement = Placement::loop(1);
    const Lanes lanes(placement, 2, {}, {test.max_activations, {}, {}});
    const Words words = to_words(lanes, {"case", placement, 2, {parse_row(test.row)}});
    EXPECT_EQ(Evaluator(lanes).check_word(0, words[0]).holds, test.holds) << test.name;
  }
}

TEST(Evaluate, CountsBytesWhereTheyAreLimited) {
  const Placement placement = Placement::vee(1);
  const Schedule schedule{"case", placement, 1, {parse_row("0F0,1F0,1B0,0B0")}};
  for (const double room : {29.0, 30.0}) {
    const Lanes lanes(placement, 1, {}, {std::nullopt, {10, 20}, {room}});
    EXPECT_EQ(Evaluator(lanes).check_word(0, to_words(lanes, schedule)[0]).holds, room == 30.0);
  }
}

TEST(Words, NamedSchedulesComeBackAsTheyWere) {
  for (const char* name : {"1f1b", "zb1p", "interleaved_1f1b", "dualpipe", "dualpipev"}) {
    const Schedule schedule = builtin_registry().make(name, {4, 12, 2});
    const Lanes lanes(schedule.placement, 12, {}, {});
    EXPECT_EQ(to_schedule(lanes, to_words(lanes, schedule)).rows, schedule.rows) << name;
  }
}

}  // namespace
}  // namespace dualpipe::search
