#include "plugin/analysis/simulate_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "plugin/analysis/simulate.h"
#include "plugin/analysis/stage_cost.h"
#include "plugin/schedule/registry.h"
#include "tests/analysis/slow_pair.h"
#include "tests/schedule/layers.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

double merged(const Phases& forward, const Phases& backward, double slowdown = 1) {
  return simulate(merge(forward, backward, {.slowdown = slowdown}), {.slowdown = slowdown}).makespan;
}

double sequence(const Phases& forward, const Phases& backward, double slowdown = 1) {
  return simulate(in_sequence(forward, backward), {.slowdown = slowdown}).makespan;
}

// The published order, whose last communication is awaited behind all computes, timed under the costs of other phases.
double published_order(const Phases& phases) {
  const int layers = static_cast<int>(phases.size()) / 4;
  PairProgram program = merge(moe_layers(layers, 3), moe_layers(layers, 3));
  program.forward = program.backward = phases;
  return simulate(program).makespan;
}

Phases layers_costing(int layers, double attention, double mlp, double all_to_all) {
  Phases phases;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = std::to_string(layer) + ".";
    phases.insert(phases.end(),
                  {compute(prefix + "attention", attention), communication(prefix + "dispatch", all_to_all),
                   compute(prefix + "mlp", mlp), communication(prefix + "combine", all_to_all)});
  }
  return phases;
}

TEST(SimulatePair, KnowsWhenEachStepRuns) {
  const Phases phases = moe_layers(1, 0.5);
  const PairTimeline timeline = simulate(merge(phases, phases));
  struct Row {
    std::string name;
    double start;
    double end;
    bool operator==(const Row&) const = default;
  };
  const PairProgram program = merge(phases, phases);
  std::vector<Row> rows;
  for (const PairSpan& span : timeline.spans) {
    rows.push_back({name_of(program, span.part, span.phase), span.start, span.end});
    EXPECT_EQ(span.communication, phases[span.phase].kind == PhaseKind::kCommunication);
  }
  const std::vector<Row> expected = {{"0.combine(B)", 0, 0.5}, {"0.attention(F)", 0, 1},  {"0.dispatch(F)", 1, 1.5},
                                     {"0.mlp(I)", 1, 2},       {"0.dispatch(B)", 2, 2.5}, {"0.mlp(W)", 2, 3},
                                     {"0.mlp(F)", 3, 4},       {"0.combine(F)", 4, 4.5},  {"0.attention(I)", 4, 5},
                                     {"0.attention(W)", 5, 6}};
  EXPECT_TRUE(rows == expected);
  EXPECT_EQ(timeline.makespan, 6);
  EXPECT_EQ(timeline.compute, 6);
  EXPECT_EQ(timeline.communication, 2);
  EXPECT_EQ(timeline.exposed(), 0);
}

// Alone, an exchange of 1.35 has an attention(F) of 1 beside it at the beginning; in a row of pairs it starts as soon
// as the gradients of the pair before are there, and the closing of that one runs beside it.
TEST(SimulatePair, InARowTheClosingHidesTheFirstExchangeOfTheNextPair) {
  const PairProgram program = merge(moe_layers(4, 1.35), moe_layers(4, 1.35));
  std::vector<std::string> opening, closing;
  for (const PairStep& step : opening_of(program)) opening.push_back(to_string(program, step));
  for (const PairStep& step : closing_of(program)) closing.push_back(to_string(program, step));
  EXPECT_THAT(opening, testing::ElementsAre("take gradients", "post 3.combine(B)"));
  EXPECT_THAT(closing, testing::ElementsAre("run 0.attention(W)", "wait 3.combine(F)", "send outputs"));
  EXPECT_NEAR(simulate(program).makespan, 24.35, 1e-9);
  EXPECT_NEAR(makespan_in_a_row(program), 24, 1e-9);
  // More than computes last does not fit.
  EXPECT_NEAR(makespan_in_a_row(merge(moe_layers(4, 2), moe_layers(4, 2))), 32, 1e-9);
}

TEST(SimulatePair, AProgramThatBeginsWithAComputeHidesNothingOfTheNextPair) {
  const PairProgram program = merge({compute("0.mlp")}, {compute("0.mlp")});
  EXPECT_EQ(opening_of(program).size(), 0u);
  EXPECT_EQ(closing_of(program).size(), 1u);
  EXPECT_EQ(makespan_in_a_row(program), 3);
}

TEST(SimulatePair, ACommunicationSlowsWhatItRunsBeside) {
  // dispatch runs for 1 of the mlp that it overlaps; at half speed that mlp has done 0.5 by then.
  const PairProgram program = merge({communication("0.dispatch")}, {compute("0.mlp")});
  EXPECT_EQ(print(program),
            "take inputs\ntake gradients\n0.mlp(I)  | 0.dispatch(F)\nsend outputs\nsend gradients\n0.mlp(W)\n");
  EXPECT_EQ(simulate(program, {.slowdown = 1}).makespan, 2);
  EXPECT_EQ(simulate(program, {.slowdown = 2}).makespan, 2.5);
  // A short compute lies within the communication altogether, and 1.2 of it are left.
  const PairProgram short_compute = merge({communication("0.dispatch", 2)}, {compute("0.mlp", 0.4)});
  EXPECT_EQ(simulate(short_compute, {.slowdown = 2}).spans[1].end, 0.8);
}

TEST(SimulatePair, RefusesAProgramThatCannotRun) {
  PairProgram program = in_sequence({compute("0.mlp")}, {compute("0.mlp")});
  program.steps.pop_back();
  EXPECT_EQ(refusal_of([&] { simulate(program); }),
            "[pair] a program of merge() or in_sequence() is needed, got one that cannot run: 0.mlp(W) stands nowhere");
}

TEST(MergedPair, HidesAllToAllBehindCompute) {
  for (const double share : {0.5, 0.9}) {
    const PairTimeline timeline = simulate(merge(moe_layers(4, share), moe_layers(4, share)));
    EXPECT_EQ(timeline.compute, 24);
    EXPECT_DOUBLE_EQ(timeline.communication, 16 * share);
    EXPECT_LE(timeline.makespan, 1.02 * timeline.compute) << share;
    EXPECT_DOUBLE_EQ(sequence(moe_layers(4, share), moe_layers(4, share)), 24 + 16 * share);
  }
}

TEST(MergedPair, TakesAnotherOrderWhereThePublishedOneIsSlower) {
  const struct {
    Phases phases;
    double published;
    double merged;
  } cases[] = {
      {layers_costing(3, 1, 3, 3), 45, 38},
      {layers_costing(3, 2, 1, 2), 30, 28},
      {layers_costing(2, 1, 2, 2), 20, 19},
      // All-to-all is the limit, and the published order keeps the link busy from the start to the end.
      {moe_layers(4, 3), 48, 48},
  };
  for (const auto& [phases, published, least] : cases) {
    EXPECT_DOUBLE_EQ(published_order(phases), published);
    EXPECT_DOUBLE_EQ(merged(phases, phases), least);
  }
}

TEST(MergedPair, IsTheFastestOfAllOrders) {
  const Phases splits = {
      compute("a"), {"s", PhaseKind::kCommunication, 0.5, 0, 0, false}, communication("d"), compute("m")};
  const struct {
    const char* name;
    Phases forward;
    Phases backward;
  } cases[] = {
      {"one layer", layers_costing(1, 1, 3, 3), layers_costing(1, 1, 3, 3)},
      {"two layers", layers_costing(2, 2, 1, 2), layers_costing(2, 2, 1, 2)},
      {"unequal layers", layers_costing(1, 1, 2, 1.5), layers_costing(2, 1, 2, 1.5)},
      {"split sizes", splits, splits},
      {"a communication first",
       {communication("d", 2), compute("m")},
       {compute("a"), communication("d"), compute("m")}},
  };
  for (const auto& [name, forward, backward] : cases) {
    EXPECT_DOUBLE_EQ(merged(forward, backward), slow_least_makespan(forward, backward)) << name;
  }
}

TEST(MergedPair, IsNeverSlowerThanTheSequence) {
  for (const double slowdown : {1.2, 10.0}) {
    EXPECT_LT(merged(moe_layers(3), moe_layers(3), slowdown), sequence(moe_layers(3), moe_layers(3), slowdown));
  }
  EXPECT_DOUBLE_EQ(merged(dense_layers(3), dense_layers(3)), sequence(dense_layers(3), dense_layers(3)));
}

TEST(MergedPair, SixteenLayersAreMergedAtOnce) {
  const Phases phases = layers_costing(16, 1, 3, 3);
  const auto start = std::chrono::steady_clock::now();
  const double makespan = merged(phases, phases);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_LE(makespan, 194);  // 192 of compute.
}

TEST(StageCost, PredictsAPair) {
  EXPECT_EQ(stage_cost(moe_layers(4, 0.5)), (StageCost{8 + 4, 8 + 4, 8, 24}));
  EXPECT_EQ(stage_cost(dense_layers(4)), (StageCost{8, 8, 8, 24}));
  const Phases splits = {compute("0.attention"), {"0.splits", PhaseKind::kCommunication, 0.5, 9, 9, false}};
  const StageCost cost = stage_cost(splits);
  EXPECT_EQ(cost.forward, 1.5);
  EXPECT_EQ(cost.backward_input, 1);
  EXPECT_EQ(cost.backward_weight, 1);
  EXPECT_EQ(stage_cost(moe_layers(1), {.slowdown = 1.5}).overlapped,
            simulate(merge(moe_layers(1), moe_layers(1), {.slowdown = 1.5}), {.slowdown = 1.5}).makespan);
}

TEST(StageCost, MakesDualPipeFaster) {
  const Schedule schedule = builtin_registry().make("dualpipe", {4, 16});
  const StageCost overlapped = stage_cost(moe_layers(4, 0.9));
  StageCost sequential = overlapped;
  sequential.overlapped = sequential.forward + sequential.backward_input + sequential.backward_weight;
  CostModel cost;
  cost.uniform = overlapped;
  const double merged_step = simulate(schedule, cost).makespan();
  cost.uniform = sequential;
  EXPECT_LT(merged_step, 0.8 * simulate(schedule, cost).makespan());
}

}  // namespace
}  // namespace dualpipe
