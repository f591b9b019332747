#include "plugin/compare/run_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kRanks = 2;
constexpr int kStages = 4;

// Seconds; in stages of which none is like another.
CostModel truth() {
  CostModel cost;
  cost.latency = 0.0005;
  for (int stage = 0; stage < kStages; ++stage) {
    const double size = 1e-3 * (stage + 2);
    cost.per_stage.push_back({size, 1.25 * size, 0.75 * size, 2.5 * size});
  }
  return cost;
}

// Two steps of DualPipeV as two pipelines recorded them, iterations of 10 ms more than that.
RunFiles run_of(const std::string& name = "dualpipev") {
  const Schedule schedule =
      builtin_registry().make(name, {.pipeline_model_parallel_size = kRanks, .num_microbatches = 8});
  const Timeline timeline = simulate(schedule, truth());
  RunFiles run;
  for (int iteration = 1; iteration <= 3; ++iteration) {
    run.iterations.push_back({iteration, 1, 1, 1000 * timeline.makespan() + 10});
  }
  for (int rank = 0; rank < 2 * kRanks; ++rank) {
    RankTimeline& ranks = run.ranks.emplace_back();
    ranks.schedule = name;
    ranks.rank = rank;
    ranks.world_size = 2 * kRanks;
    ranks.pipeline_rank = rank / 2;
    ranks.pipeline_model_parallel_size = kRanks;
    ranks.num_microbatches = 8;
    ranks.num_stages = kStages;
    ranks.stages = schedule.placement.stages_of(rank / 2);
    ranks.parameter_bytes = 100.0 * (rank + 1);
    for (int iteration = 2; iteration <= 3; ++iteration) {
      RecordedStep& step = ranks.steps.emplace_back();
      step.iteration = iteration;
      step.began = 1.7e9 - 0.25 * rank;  // Each rank began its step at a time of its own.
      for (Span span : timeline.ranks[rank / 2]) {
        step.spans.push_back({span.action, span.start + 0.25 * rank, span.end + 0.25 * rank});
      }
    }
  }
  return run;
}

// One rank, one stage, one micro-batch: F from 0 to 0.01, B to 0.03.
RunFiles small_run(std::vector<PhaseRecord> phases) {
  RunFiles run;
  run.iterations = {{1, 1, 1, 30}};
  run.ranks.resize(1);
  run.ranks[0].schedule = "1f1b";
  run.ranks[0].stages = {0};
  run.ranks[0].steps.resize(1);
  RecordedStep& step = run.ranks[0].steps[0];
  step.iteration = 1;
  step.spans = {{parse_action("0F0"), 0, 0.01}, {parse_action("0B0"), 0.01, 0.03}};
  step.phases = std::move(phases);
  return run;
}

TEST(RunCost, FindsWhatTheRunTook) {
  const RunCost cost = cost_of_run(run_of());
  ASSERT_EQ(cost.file.stages.size(), std::size_t{kStages});
  EXPECT_NEAR(cost.file.latency, 0.5, 1e-3);  // Times since 1970 leave a third of a microsecond.
  EXPECT_NEAR(cost.file.step_overhead, 10, 1e-2);
  for (int stage = 0; stage < kStages; ++stage) {
    const StageCost& found = cost.file.stages[stage].cost;
    const StageCost given = truth().per_stage[stage];
    EXPECT_NEAR(found.forward, 1000 * given.forward, 1e-3);
    EXPECT_NEAR(found.backward_input, 1000 * given.backward_input, 1e-3);
    EXPECT_NEAR(found.backward_weight, 1000 * given.backward_weight, 1e-3);
    EXPECT_NEAR(found.overlapped, 1000 * given.overlapped, 1e-3);
    EXPECT_EQ(cost.file.stages[stage].all_to_all, std::nullopt);
  }
  EXPECT_NEAR(cost.simulated, cost.measured, 1e-2);
  EXPECT_EQ(cost.ranks, kRanks);
  EXPECT_EQ(cost.num_microbatches, 8);
  EXPECT_THAT(cost.notes, IsEmpty());
}

// Ranks 0 and 1 hold stages 0 and 3, with 100 and 200 bytes; ranks 2 and 3 stages 1 and 2, with 300 and 400.
TEST(RunCost, DividesTheBytesOfARankOverItsStages) {
  const std::vector<CostFileStage> stages = cost_of_run(run_of()).file.stages;
  EXPECT_EQ(stages[0].parameter_bytes, 75);
  EXPECT_EQ(stages[3].parameter_bytes, 75);
  EXPECT_EQ(stages[1].parameter_bytes, 175);
  EXPECT_EQ(stages[1].gradient_bytes, std::nullopt);
  EXPECT_EQ(stages[1].activation_bytes, std::nullopt);
}

TEST(RunCost, AnActivationIsWhatAForwardAdds) {
  RunFiles run = small_run({});
  run.ranks[0].steps[0].peak_activations = 1;
  run.ranks[0].steps[0].peak_activation_bytes = 500;
  EXPECT_EQ(cost_of_run(run).file.stages[0].activation_bytes, 500);
  run.ranks[0].steps[0].memory = {{0, 64}, {0.01, 4160}, {0.03, 64}};
  EXPECT_EQ(cost_of_run(run).file.stages[0].activation_bytes, 4096);
}

TEST(RunCost, AddsUpTheExchangesOfAStage) {
  const RunCost cost = cost_of_run(small_run({{"0F0 0.attention", 0, 0.002, {}},
                                              {"0F0 0.dispatch", 0.002, 0.005, 0.001},
                                              {"0F0 0.combine", 0.006, 0.008, 0.0},
                                              {"0I0 0.combine", 0.011, 0.015, 0.004}}));
  ASSERT_TRUE(cost.file.stages[0].all_to_all);
  EXPECT_NEAR(*cost.file.stages[0].all_to_all, 9, 1e-9);
}

// Of an exchange counts the wait; a B that computed both gradients at once is divided evenly.
TEST(LayerCosts, ComeFromPhases) {
  RunFiles run = small_run({{"0F0 embedding", 0, 0.001, {}},
                            {"0F0 0.attention", 0.001, 0.003, {}},
                            {"0F0 0.dispatch", 0.003, 0.006, 0.0005},
                            {"0F0 1.attention", 0.006, 0.007, {}},
                            {"0F0 output", 0.007, 0.008, {}},
                            {"0F0 head", 0.008, 0.010, {}},
                            {"0I0 head", 0.010, 0.013, {}},
                            {"0W0 head", 0.013, 0.014, {}},
                            {"0B0 1.attention", 0.014, 0.018, {}},
                            {"0I0 0.dispatch", 0.018, 0.020, 0.00025},
                            {"0W0 0.attention", 0.020, 0.022, {}}});
  const std::vector<LayerCost> layers = cost_of_run(run).file.layers;
  std::vector<std::string> names;
  for (const LayerCost& layer : layers) {
    names.push_back(layer.name);
  }
  ASSERT_THAT(names, ElementsAre("embedding", "0", "1", "head"));
  EXPECT_NEAR(layers[0].forward, 1, 1e-9);
  EXPECT_NEAR(layers[1].forward, 2.5, 1e-9);
  EXPECT_NEAR(layers[1].backward_input, 0.25, 1e-9);
  EXPECT_NEAR(layers[1].backward_weight, 2, 1e-9);
  EXPECT_NEAR(layers[2].forward, 2, 1e-9);
  EXPECT_NEAR(layers[2].backward_input, 2, 1e-9);
  EXPECT_NEAR(layers[2].backward_weight, 2, 1e-9);
  EXPECT_NEAR(layers[3].total(), 6, 1e-9);
}

TEST(LayerCosts, AreLeftOutWhereNamesDoNotTellLayersApart) {
  RunFiles run = run_of();
  for (RankTimeline& rank : run.ranks) {
    for (RecordedStep& step : rank.steps) {
      for (const Span& span : step.spans) {
        step.phases.push_back({to_string(span.action.op) + " attention", span.start, span.end, {}});
      }
    }
  }
  EXPECT_THAT(layer_costs(run), IsEmpty());
}

TEST(RunCost, RefusesRunsThatShowNothing) {
  EXPECT_EQ(
      refusal_of([] { cost_of_run({}); }),
      "[run files] timeline files must have a step that all ranks of a pipeline recorded, got none; does the host "
      "write them? (docs/run_files.md)");
  EXPECT_EQ(refusal_of([] {
              cost_of_run(small_run({{"0F0", 0, 1, {}}}));
            }),
            "[phases] a phase must be called by an action of a stage below 1 and its own name, as in '0F3 "
            "0.attention', got '0F0'");
  EXPECT_EQ(refusal_of([] {
              cost_of_run(small_run({{"7F0 mlp", 0, 1, {}}}));
            }),
            "[phases] a phase must be called by an action of a stage below 1 and its own name, as in '0F3 "
            "0.attention', got '7F0 mlp'");
}

}  // namespace
}  // namespace dualpipe
