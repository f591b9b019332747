// Timelines with known costs: what made them is found again.
#include "plugin/analysis/measured_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kRounding = 1e-9;

bool near(double value, double expected, double tolerance) {
  return std::abs(value - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {.pipeline_model_parallel_size = ranks, .num_microbatches = num_microbatches});
}

Timeline timeline_of(const std::vector<std::vector<std::pair<std::string, std::pair<double, double>>>>& ranks) {
  Timeline timeline;
  for (const auto& rank : ranks) {
    timeline.ranks.emplace_back();
    for (const auto& [cell, times] : rank) {
      timeline.ranks.back().push_back({parse_action(cell), times.first, times.second});
    }
  }
  return timeline;
}

// What a real run adds to the costs. Each may differ from call to call.
struct Weather {
  std::function<double()> latency = [] { return 0.0; };   // Of one message.
  std::function<double()> slowness = [] { return 1.0; };  // Of one action.
  double overhead = 0;                                    // Ahead of every action of a rank but its first.
};

// A slow simulator of its own: rows are walked again and again until nothing more can run.
Timeline run_in(const Schedule& schedule, const CostModel& cost, const Weather& weather) {
  std::map<std::string, double> arrival;  // Of results, by the op that needs them.
  Timeline timeline;
  timeline.ranks.resize(schedule.rows.size());
  const int last = schedule.placement.stages() - 1;
  const auto key = [](bool forward, int stage, int micro_batch) {
    return (forward ? "F" : "B") + std::to_string(stage) + "," + std::to_string(micro_batch);
  };
  const auto ready = [&](const Op& op) -> std::optional<double> {
    const bool forward = op.kind == Kind::kForward;
    if (op.kind == Kind::kBackwardWeight || (forward ? op.stage == 0 : op.stage == last)) {
      return 0;
    }
    const auto found = arrival.find(key(forward, op.stage, op.micro_batch));
    return found == arrival.end() ? std::nullopt : std::optional(found->second);
  };
  const auto pass_on = [&](const Op& op, double end) {
    const bool forward = op.kind == Kind::kForward;
    const int to = forward ? op.stage + 1 : op.stage - 1;
    if (op.kind == Kind::kBackwardWeight || to < 0 || to > last) {
      return;
    }
    const bool is_local =
        schedule.placement.rank_of(to, op.micro_batch) == schedule.placement.rank_of(op.stage, op.micro_batch);
    arrival[key(forward, to, op.micro_batch)] = is_local ? end : end + weather.latency();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      std::vector<Span>& spans = timeline.ranks[rank];
      while (spans.size() < schedule.rows[rank].size()) {
        const Action& action = schedule.rows[rank][spans.size()];
        const std::optional<double> one = ready(action.op);
        const std::optional<double> other = action.paired ? ready(*action.paired) : 0;
        if (!one || !other) {
          break;
        }
        const double free = spans.empty() ? 0 : spans.back().end;
        const double start = std::max({free, *one, *other}) + (spans.empty() ? 0 : weather.overhead);
        spans.push_back({action, start, start + cost.duration(action) * weather.slowness()});
        pass_on(action.op, spans.back().end);
        if (action.paired) {
          pass_on(*action.paired, spans.back().end);
        }
        moved = true;
      }
    }
  }
  return timeline;
}

double any_between(double low, double high) { return low + (high - low) * *rc::gen::inRange(0, 1001) / 1000.0; }

struct Case {
  Schedule schedule;
  CostModel cost;
};

Case any_case() {
  const std::string name = *rc::gen::element<std::string>("1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev");
  const int ranks = 2 * *rc::gen::inRange(1, 4);
  Case any{make(name, ranks, ranks * 2 * *rc::gen::inRange(1, 3)), {}};
  any.cost.latency = any_between(0, 0.5);
  for (int stage = 0; stage < any.schedule.placement.stages(); ++stage) {
    StageCost cost{any_between(1, 2), any_between(1, 2), any_between(1, 2), 0};
    cost.overlapped = any_between(2, 4);
    any.cost.per_stage.push_back(cost);
  }
  return any;
}

// Small schedules lack some of these.
bool runs(const Schedule& schedule, int stage, std::optional<Kind> kind) {
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      const bool is_it = kind ? !action.paired && action.op.kind == *kind : action.is_overlap();
      if (is_it && action.op.stage == stage) {
        return true;
      }
    }
  }
  return false;
}
constexpr std::optional<Kind> kPair = std::nullopt;

TEST(MeasuredCost, OfASimulatedTimelineIsWhatWasSimulated) {
  ASSERT_TRUE(rc::check("measure_cost(simulate(schedule, cost)) == cost", [] {
    const Case any = any_case();
    const Timeline truth = simulate(any.schedule, any.cost);
    const MeasuredCost measured = measure_cost({truth, truth}, any.schedule.placement.stages());
    RC_ASSERT(near(measured.cost.latency, any.cost.latency, kRounding));
    RC_ASSERT(near(measured.overhead, 0, kRounding));
    for (int stage = 0; stage < any.schedule.placement.stages(); ++stage) {
      const StageCost& found = measured.cost.per_stage[stage];
      const StageCost& given = any.cost.per_stage[stage];
      const double backward = given.backward_input + given.backward_weight;
      RC_ASSERT(near(found.forward, given.forward, kRounding));
      RC_ASSERT(near(found.backward_input + found.backward_weight, backward, kRounding));
      RC_ASSERT(!runs(any.schedule, stage, Kind::kBackwardInput) ||
                near(found.backward_input, given.backward_input, kRounding));
      RC_ASSERT(!runs(any.schedule, stage, kPair) || near(found.overlapped, given.overlapped, kRounding));
    }
    RC_ASSERT(near(simulate(any.schedule, measured.cost).makespan(), truth.makespan(), kRounding));
  }));
}

// Latencies between nothing and twice their mean, computes within 5 %, an overhead ahead of every action, five steps.
TEST(MeasuredCost, PredictsStepsInBadWeather) {
  ASSERT_TRUE(rc::check("predicted within 5 % of the median step", [] {
    const Case any = any_case();
    std::mt19937 random(*rc::gen::arbitrary<unsigned>());
    const auto uniform = [&random](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    Weather weather{[&] { return uniform(0, 2 * any.cost.latency); }, [&] { return uniform(0.95, 1.05); },
                    any_between(0, 0.1)};
    std::vector<Timeline> steps;
    std::vector<double> makespans;
    for (int step = 0; step < 5; ++step) {
      steps.push_back(run_in(any.schedule, any.cost, weather));
      makespans.push_back(steps.back().makespan());
    }
    std::sort(makespans.begin(), makespans.end());
    const MeasuredCost measured = measure_cost(steps, any.schedule.placement.stages());
    for (std::size_t stage = 0; stage < any.cost.per_stage.size(); ++stage) {
      RC_ASSERT(
          near(measured.cost.per_stage[stage].forward, any.cost.per_stage[stage].forward + weather.overhead, 0.05));
    }
    RC_ASSERT(near(measured.overhead, weather.overhead, 0.02));
    const double predicted = simulate(any.schedule, measured.cost).makespan();
    RC_ASSERT(std::abs(predicted / makespans[2] - 1) < 0.05);
  }));
}

TEST(MeasuredCost, TheSlowSimulatorAgreesWithTheFastOne) {
  const Schedule schedule = make("dualpipe", 4, 10);
  CostModel cost{{1, 1.5, 0.5, 2.5}, {}, 0.25};
  const Timeline slow = run_in(schedule, cost, {.latency = [] { return 0.25; }});
  EXPECT_EQ(slow.makespan(), simulate(schedule, cost).makespan());
}

// Every figure by hand.
TEST(MeasuredCost, ByHand) {
  const Timeline step =
      timeline_of({{{"0F0", {0, 2}}, {"0F1", {2.5, 4.5}}, {"0B0", {12, 16}}, {"0B1", {20.5, 24.5}}},
                   {{"1F0", {3, 6}}, {"1B0", {6.5, 11}}, {"1F1", {11.5, 14.5}}, {"1B1", {15, 19.5}}}});
  const MeasuredCost measured = measure_cost({step, step}, 2);
  EXPECT_EQ(measured.overhead, 0.5);
  EXPECT_EQ(measured.cost.latency, 0.5);  // 0B0 waited for 1B0: 1 from 11 to 12, half of which is overhead.
  EXPECT_THAT(measured.cost.per_stage, ElementsAre(StageCost{2.5, 2.5, 2.5, 6.5}, StageCost{3.5, 2.75, 2.75, 8}));
  EXPECT_THAT(measured.notes, ElementsAre("stages 0 and 1 ran B alone: divided evenly into I and W",
                                          "stages 0 and 1 ran no pair: F&B is F + B, nothing is gained"));
}

// Stage 0 as stage 1 divides it: 3 of 4 are I; its F&B gains what that of stage 1 gains: 3 for 2 + 8.
TEST(MeasuredCost, FillsAStageFromTheOthers) {
  const Timeline step = timeline_of({{{"0F0", {0, 2}},
                                      {"1F0", {2, 4}},
                                      {"1I0", {4, 7}},
                                      {"1W0", {7, 8}},
                                      {"(1F1;0B0)OVERLAP_F_B", {8, 11}},
                                      {"0B1", {11, 19}}}});
  const MeasuredCost measured = measure_cost({step}, 2);
  EXPECT_THAT(measured.cost.per_stage, ElementsAre(StageCost{2, 6, 2, 3}, StageCost{2, 3, 1, 3}));
  EXPECT_THAT(measured.notes, ElementsAre("stage 0 ran B alone: divided into I and W as in the other stages",
                                          "stage 0 ran no pair: F&B as in the other stages, against their F and B"));
  EXPECT_THAT(measured.pair_share, ElementsAre(std::nullopt, 0.3));
}

TEST(MeasuredCost, EverythingSeenNeedsNoNote) {
  EXPECT_THAT(measure_cost({simulate(make("dualpipev", 4, 10))}, 8).notes, IsEmpty());
}

// A receiver that was busy when the message came says nothing, nor does a pair that sent before its end.
TEST(MeasuredCost, TakesTheLatencyFromReceiversThatWereFree) {
  const Timeline step = timeline_of({{{"0F0", {0, 1}}, {"0F1", {1, 2}}, {"0F2", {2, 4}}, {"0B0", {7.25, 8}}},
                                     {{"1F0", {1.25, 2}}, {"1F1", {2.25, 5}}, {"1F2", {5, 6}}, {"1B0", {6, 7}}}});
  EXPECT_EQ(measure_cost({step}, 2).cost.latency, 0.25);
}

TEST(MeasuredCost, RefusesWhatWasNeverSeen) {
  const auto refusal = [](const Timeline& step, int stages) -> std::string {
    try {
      measure_cost({step}, stages);
    } catch (const ScheduleError& error) {
      return error.what();
    }
    return "accepted";
  };
  const Timeline forward = timeline_of({{{"0F0", {0, 1}}}});
  const Timeline pairs = timeline_of({{{"(0F0;0B1)OVERLAP_F_B", {0, 1}}}});
  EXPECT_EQ(refusal(forward, 1),
            "[measured cost] stage 0 must have run B, or I and W, outside pairs, got no such action; record a step of "
            "another schedule, for example zb1p");
  EXPECT_EQ(refusal(pairs, 1),
            "[measured cost] stage 0 must have run F outside pairs, got no such action; record a step of another "
            "schedule, for example zb1p");
  EXPECT_EQ(refusal(timeline_of({{{"2F0", {0, 1}}}}), 2),
            "[measured cost] a step must hold F, B, I and W of stages 0 to 1, got 2F0");
  EXPECT_EQ(refusal(timeline_of({{{"0SEND_F0", {0, 1}}}}), 2),
            "[measured cost] a step must hold F, B, I and W of stages 0 to 1, got 0SEND_F0");
}

}  // namespace
}  // namespace dualpipe
