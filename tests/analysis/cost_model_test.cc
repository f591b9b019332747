#include "plugin/analysis/cost_model.h"

#include <gtest/gtest.h>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

TEST(CostModel, ParsesAnySubsetInAnyOrder) {
  const CostModel cost = parse_cost("latency=0.5,overlapped=2.25,forward=2");
  EXPECT_EQ(cost.uniform, (StageCost{2, 1, 1, 2.25}));
  EXPECT_EQ(cost.latency, 0.5);
}

TEST(CostModel, APairGainsNothingUnlessTold) {
  EXPECT_EQ(parse_cost("").uniform.overlapped, 3);
  EXPECT_EQ(parse_cost("forward=2,backward_weight=0.5").uniform.overlapped, 3.5);
}

TEST(CostModel, KnowsTheDurationOfEveryAction) {
  const CostModel cost = parse_cost("forward=1,backward_input=2,backward_weight=4,overlapped=6.5");
  EXPECT_EQ(cost.duration(single(make_op(0, Kind::kForward))), 1);
  EXPECT_EQ(cost.duration(single(make_op(0, Kind::kBackward))), 6);
  EXPECT_EQ(cost.duration(single(make_op(0, Kind::kBackwardInput))), 2);
  EXPECT_EQ(cost.duration(single(make_op(0, Kind::kBackwardWeight))), 4);
  EXPECT_EQ(cost.duration(overlap(make_op(0, Kind::kForward), make_op(1, Kind::kBackward))), 6.5);
}

TEST(CostModel, RefusesMistakesWithAValueThatWorks) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      // Keys.
      {"foward=1", "[cost] unknown key 'foward': did you mean 'forward'?"},
      {"zzz=1", "[cost] unknown key 'zzz': known are forward, backward_input, backward_weight, overlapped, latency"},
      {"forward=1,forward=2", "[cost] forward must be given once, got it twice"},
      {"forward",
       "[cost] 'forward' must be of the form key=number, as in "
       "forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0"},
      // Numbers.
      {"forward=-1", "[cost] forward must be a finite number of at least 0, such as 1, got '-1'"},
      {"forward=nan", "[cost] forward must be a finite number of at least 0, such as 1, got 'nan'"},
      {"overlapped=inf", "[cost] overlapped must be a finite number of at least 0, such as 1, got 'inf'"},
      {"latency=", "[cost] latency must be a finite number of at least 0, such as 1, got ''"},
      {"latency=1x", "[cost] latency must be a finite number of at least 0, such as 1, got '1x'"},
  };
  for (const auto& [text, message] : cases) {
    try {
      parse_cost(text);
      ADD_FAILURE() << text << ": no error";
    } catch (const ScheduleError& error) {
      EXPECT_STREQ(error.what(), message) << text;
    }
  }
}

}  // namespace
}  // namespace dualpipe
