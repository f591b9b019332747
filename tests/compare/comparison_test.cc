// Figures, notes, table, JSON and trace of runs made here.
#include "plugin/compare/comparison.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "plugin/compare/comparison_json.h"
#include "plugin/compare/comparison_table.h"
#include "plugin/compare/comparison_trace.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::vector<IterationMetrics> metrics(const std::vector<double>& ms) {
  std::vector<IterationMetrics> iterations;
  for (std::size_t i = 0; i < ms.size(); ++i)
    iterations.push_back({static_cast<std::int64_t>(i) + 1, 4.0 - 0.5 * static_cast<double>(i), 1.0, ms[i]});
  return iterations;
}

Span span(const char* cell, double start, double end) { return {parse_action(cell), start, end}; }

RankTimeline rank_of(int rank, std::vector<int> stages, std::vector<Span> spans) {
  RankTimeline timeline;
  timeline.schedule = "any";
  timeline.rank = timeline.pipeline_rank = rank;
  timeline.world_size = timeline.pipeline_model_parallel_size = timeline.num_stages = 2;
  timeline.num_microbatches = 2;
  timeline.stages = std::move(stages);
  timeline.parameter_bytes = 1e6 * static_cast<double>(timeline.stages.size());
  RecordedStep step;
  step.iteration = 2;
  step.seconds = 10;
  step.spans = std::move(spans);
  timeline.steps.push_back(std::move(step));
  return timeline;
}

// F and B of two micro-batches on two ranks, without a gap on rank 1: 0 to 9, of which rank 0 idles 3 and rank 1
// idles 3.
RunFiles one_copy() {
  return {metrics({9, 10, 11}),
          {rank_of(0, {0}, {span("0F0", 0, 1), span("0F1", 1, 2), span("0B0", 4, 6), span("0B1", 7, 9)}),
           rank_of(1, {1}, {span("1F0", 1, 2), span("1B0", 2, 4), span("1F1", 4, 5), span("1B1", 5, 7)})}};
}

// The same with both stages on both ranks, one micro-batch from each end.
RunFiles two_copies() {
  return {metrics({8, 5, 5.5}),
          {rank_of(0, {0, 1}, {span("0F0", 0, 1), span("1F1", 1, 2), span("1B1", 2, 4), span("0B0", 4, 6)}),
           rank_of(1, {1, 0}, {span("0F1", 0, 1), span("1F0", 1, 2), span("1B0", 2, 4), span("0B1", 4, 6)})}};
}

ComparisonOptions options(const std::string& baseline = "builtin_1f1b") {
  ComparisonOptions options;
  options.title = "a title";
  options.baseline = baseline;
  options.warmup = 1;
  return options;
}

TEST(Comparison, HasTheFiguresOfTheRuns) {
  const Comparison comparison = compare_runs(
      {{"builtin_1f1b", std::nullopt, {one_copy()}}, {"dualpipe", std::nullopt, {two_copies()}}}, options());
  const ScheduleFigures& before = comparison.runs[0];
  EXPECT_EQ(before.ms->value, 10.5);
  EXPECT_EQ(before.ms->low, 10.25);
  EXPECT_EQ(before.speedup->value, 1);
  EXPECT_EQ(before.pipeline_ms, 9e3);
  EXPECT_NEAR(*before.bubble, 6.0 / 18, 1e-12);
  EXPECT_NEAR(*before.utilization, 12.0 / 18, 1e-12);
  EXPECT_FALSE(before.exposed_ms);
  EXPECT_NEAR(*before.simulated_ms, 9e3, 1e-6);
  EXPECT_EQ(before.peak_activations, 2);
  EXPECT_EQ(before.parameter_copies, 1);
  EXPECT_EQ(before.chunks, 1);
  const ScheduleFigures& after = comparison.runs[1];
  EXPECT_EQ(after.ms->value, 5.25);
  EXPECT_NEAR(after.speedup->value, 2, 1e-12);
  EXPECT_FALSE(after.speedup->low);
  EXPECT_EQ(comparison.reference, "builtin_1f1b");
  EXPECT_NEAR(*after.bubble, 0, 1e-12);
  EXPECT_NEAR(*after.simulated_ms, 6e3, 1e-6);
  EXPECT_EQ(after.parameter_copies, 2);
  EXPECT_EQ(after.parameter_bytes, 2e6);
  EXPECT_EQ(after.loss_difference, 0);
  EXPECT_THAT(comparison.mismatches, IsEmpty());
  EXPECT_FALSE(comparison.has_failures());
}

// Ranks 2 and 3 are a pipeline beside that of ranks 0 and 1, which begins a second later.
TEST(Comparison, ShowsAllPipelinesOfAStep) {
  RunFiles run = one_copy();
  for (int rank : {0, 1}) {
    run.ranks.push_back(run.ranks[rank]);
    run.ranks.back().rank = rank + 2;
    run.ranks.back().steps[0].began += 1;
    run.ranks.back().steps[0].memory = {{0, 8}};
  }
  for (RankTimeline& rank : run.ranks) rank.world_size = 4;
  const ScheduleFigures figures = compare_runs({{"a", std::nullopt, {run, run}}}, options("a")).runs[0];
  std::vector<std::string> measured, simulated;
  for (const RankPicture& rank : figures.measured)
    measured.push_back(fmt::format("{}: {}", rank.rank, rank.spans.front().start));
  for (const RankPicture& rank : figures.simulated)
    simulated.push_back(fmt::format("{}: {}", rank.rank, rank.spans.front().start));
  EXPECT_THAT(measured, ElementsAre("0: 0", "1: 1", "2: 1", "3: 2"));
  EXPECT_THAT(simulated, ElementsAre("0: 0", "1: 1", "2: 0", "3: 1"));
  EXPECT_EQ(figures.measured[2].memory.at(0).time, 1);
  EXPECT_EQ(figures.pipeline_ms, 9e3);
  EXPECT_EQ(figures.parameter_copies, 1);
  EXPECT_EQ(figures.measured[1].pipeline, 0);
  EXPECT_EQ(figures.measured[2].pipeline, 1);
  EXPECT_EQ(figures.simulated[2].pipeline, 1);
}

// The executor may finish a pair in the middle of the next action; both are then open at once.
TEST(Comparison, CountsTimeInTwoActionsOnce) {
  RunFiles run = one_copy();
  run.ranks[0].steps[0].spans[2].end = 8;  // Of 0B0, one into 0B1.
  const Comparison comparison = compare_runs({{"a", std::nullopt, {run}}}, options("a"));
  EXPECT_NEAR(*comparison.runs[0].bubble, 5.0 / 18, 1e-12);
}

// Half a second into 0B0 the rank still waited for the gradient of a pair, say.
TEST(Comparison, CountsWaitingForAMessageAsBubble) {
  RunFiles run = one_copy();
  run.ranks[0].steps[0].spans[2].waited = 0.5;
  const Comparison comparison = compare_runs({{"a", std::nullopt, {run}}}, options("a"));
  EXPECT_NEAR(*comparison.runs[0].bubble, 6.5 / 18, 1e-12);
  EXPECT_NEAR(*comparison.runs[0].utilization, 11.5 / 18, 1e-12);
  const json text = json::parse(to_json(comparison));
  EXPECT_EQ(text["runs"][0]["measured"]["ranks"][0]["spans"][2], json::array({"0B0", 4.0, 6.0, 0.5}));
}

// A resumed run does not begin at 1; the warm-up is as long.
TEST(Comparison, LeavesOutTheFirstIterationsWhateverTheirNumber) {
  RunFiles run = one_copy();
  for (IterationMetrics& metrics : run.iterations) metrics.iteration += 100;
  for (RankTimeline& rank : run.ranks) rank.steps[0].iteration = 101;
  const ScheduleFigures early = compare_runs({{"a", std::nullopt, {run}}}, options("a")).runs[0];
  EXPECT_EQ(early.ms->value, 10.5);
  EXPECT_FALSE(early.pipeline_ms);
  for (RankTimeline& rank : run.ranks) rank.steps[0].iteration = 102;
  EXPECT_EQ(compare_runs({{"a", std::nullopt, {run}}}, options("a")).runs[0].pipeline_ms, 9e3);
}

TEST(Comparison, SaysWhichIterationsDiffer) {
  RunFiles other = one_copy();
  other.iterations[2].iteration = 4;
  const Comparison comparison =
      compare_runs({{"a", std::nullopt, {one_copy()}}, {"b", std::nullopt, {other}}}, options("a"));
  EXPECT_EQ(comparison.runs[1].failure,
            "metrics.jsonl must have those of a = 3 iterations, 1 to 3; got 3 iterations, 1 to 4, with 4 for 3");
}

TEST(Comparison, SaysWhyNothingWasSimulated) {
  RunFiles run = one_copy();
  run.ranks[1].steps[0].spans.pop_back();
  const Comparison comparison = compare_runs({{"a", std::nullopt, {run}}}, options("a"));
  EXPECT_TRUE(comparison.runs[0].pipeline_ms);
  EXPECT_FALSE(comparison.runs[0].simulated_ms);
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("'-': what a ran cannot be simulated: [")));
}

TEST(Comparison, KnowsWhatIsMissing) {
  RunFiles no_exposure = one_copy();
  no_exposure.ranks[0].steps[0].exposed_seconds = 1;
  RunFiles exposure = no_exposure;
  exposure.ranks[1].steps[0].exposed_seconds = 2;
  RunFiles no_bytes = one_copy();
  no_bytes.ranks[1].parameter_bytes.reset();
  RunFiles early = one_copy();
  for (RankTimeline& rank : early.ranks) rank.steps[0].iteration = 1;
  const Comparison comparison = compare_runs({{"a", std::nullopt, {no_exposure}},
                                              {"b", std::nullopt, {exposure}},
                                              {"c", std::nullopt, {no_bytes}},
                                              {"d", std::nullopt, {early}},
                                              {"e", std::nullopt, {{metrics({9, 10, 11}), {}}}}},
                                             options("a"));
  EXPECT_FALSE(comparison.runs[0].exposed_ms);
  EXPECT_EQ(comparison.runs[1].exposed_ms, 1.5e3);
  EXPECT_NEAR(*comparison.runs[1].utilization, 9.0 / 18, 1e-12);
  EXPECT_FALSE(comparison.runs[2].parameter_bytes);
  EXPECT_FALSE(comparison.runs[3].bubble);
  EXPECT_EQ(comparison.runs[3].num_stages, 2);
  EXPECT_FALSE(comparison.runs[4].num_stages);
  EXPECT_THAT(comparison.notes,
              Contains("'-': d recorded no step after the warm-up that all ranks of a pipeline have."));
  EXPECT_THAT(comparison.notes, Contains(HasSubstr("'-': e wrote no timeline_rank<R>.jsonl")));
  EXPECT_THAT(comparison.notes,
              Contains("a, c wrote no exposed_seconds: waiting for an exchange counts as busy there."));
}

TEST(Comparison, SaysWhoHoldsMoreAndWhoRanBesideWhom) {
  RunFiles folded = one_copy();
  for (RankTimeline& rank : folded.ranks) {
    rank.num_stages = 4;
    rank.stages = {rank.rank, 3 - rank.rank};
  }
  const Comparison all = compare_runs({{"builtin_1f1b", std::nullopt, {one_copy()}},
                                       {"interleaved_1f1b", std::nullopt, {folded}},
                                       {"dualpipe", std::nullopt, {two_copies()}},
                                       {"dualpipev", std::nullopt, {folded}}},
                                      options());
  EXPECT_THAT(all.notes,
              ElementsAre("No interval of the speed-up of interleaved_1f1b, dualpipe, dualpipev: that takes at "
                          "least 3 rounds (--rounds 3).",
                          "dualpipe holds twice the parameters: every stage lives on two ranks. One copy: "
                          "builtin_1f1b, interleaved_1f1b, dualpipev.",
                          "builtin_1f1b, interleaved_1f1b, dualpipe, dualpipev wrote no exposed_seconds: "
                          "waiting for an exchange counts as busy there.",
                          HasSubstr("'-': what interleaved_1f1b ran cannot be simulated: [measured cost]"),
                          HasSubstr("'-': what dualpipev ran cannot be simulated: [measured cost]")));
  const Comparison unlike = compare_runs(
      {{"interleaved_1f1b", std::nullopt, {one_copy()}}, {"dualpipev", std::nullopt, {folded}}}, options("dualpipev"));
  EXPECT_THAT(unlike.notes, Contains(HasSubstr("interleaved_1f1b and dualpipev differ in chunks per rank")));
  const Comparison alone = compare_runs({{"dualpipe", std::nullopt, {two_copies()}}}, options("dualpipe"));
  EXPECT_THAT(alone.notes, Contains("For a fair picture this lacks interleaved_1f1b (1F1B with as many chunks per "
                                    "rank), dualpipev (as many parameters per rank as 1F1B)."));
}

// Without timelines the names of our own schedules alone say who holds what.
TEST(Comparison, DoesNotGuessWhoHoldsMore) {
  const auto note_of = [](const std::vector<std::string>& schedules) {
    std::vector<ScheduleRuns> runs;
    for (const std::string& schedule : schedules)
      runs.push_back({schedule,
                      std::nullopt,
                      {{metrics({9, 10, 11}), {}}, {metrics({9, 10, 11}), {}}, {metrics({9, 10, 11}), {}}}});
    return compare_runs(runs, options(schedules.front())).notes.front();
  };
  EXPECT_EQ(note_of({"1f1b", "zb1p"}), "Every row holds one copy of the parameters over its ranks.");
  EXPECT_EQ(note_of({"1f1b", "mine.csv", "auto"}), "One copy of the parameters: 1f1b. Not known for mine.csv, auto.");
  EXPECT_EQ(note_of({"1f1b", "dualpipe", "auto"}),
            "dualpipe holds twice the parameters: every stage lives on two ranks. One copy: 1f1b. Not known for auto.");
  EXPECT_EQ(note_of({"mine.csv"}), "How many copies of the parameters a row holds is not known for mine.csv.");
}

TEST(Comparison, HasAnIntervalOfTheSpeedUpFromThreeRoundsOn) {
  const auto compared = [](std::size_t rounds) {
    const std::vector<RunFiles> before(rounds, one_copy()), after(rounds, two_copies());
    return compare_runs({{"a", std::nullopt, before}, {"b", std::nullopt, after}}, options("a"));
  };
  const auto no_interval = Contains("No interval of the speed-up of b: that takes at least 3 rounds (--rounds 3).");
  EXPECT_FALSE(compared(2).runs[1].speedup->low);
  EXPECT_THAT(compared(2).notes, no_interval);
  EXPECT_THAT(to_table(compared(2)), HasSubstr("(5.00 - 5.50)           2.000 "));
  EXPECT_NEAR(*compared(3).runs[1].speedup->low, 2, 1e-12);
  EXPECT_THAT(compared(3).notes, Not(no_interval));
  EXPECT_THAT(to_table(compared(3)), HasSubstr("  2.000 (2.000 - 2.000)  "));
  EXPECT_TRUE(json::parse(to_json(compared(2)))["runs"][1]["speedup"]["high"].is_null());
}

TEST(Comparison, ShowsNoSpeedUpOverIterationsThatTakeNoTime) {
  const Comparison comparison =
      compare_runs({{"a", std::nullopt, {{metrics({0, 0, 0}), {}}}}, {"b", std::nullopt, {one_copy()}}}, options("a"));
  EXPECT_FALSE(comparison.runs[1].speedup);
}

// F, I and W take a millisecond each, and a step what its schedule does and 0.45 ms.
CostFile costs(std::size_t stages) {
  CostFile file;
  file.name = "c.json";
  file.step_overhead = 0.45;
  file.stages.resize(stages);
  return file;
}

Comparison predicted(const std::vector<ScheduleRuns>& runs, std::size_t stages = 2) {
  ComparisonOptions with_costs = options(runs.front().schedule);
  with_costs.cost = costs(stages);
  return compare_runs(runs, with_costs);
}

// Two ranks and two micro-batches. 1f1b: (M + P - 1)(F + B) = 9; zb1p: M (F + B) + (P - 1)(F + B - 2 W) = 7; the order
// of two_copies(): F F B B = 6. What the runs took, 10.5 or 5.25, plays no part.
TEST(Prediction, IsThePlanOfTheScheduleUnderTheCostFile) {
  const Comparison comparison = predicted({{"builtin_1f1b", std::nullopt, {one_copy()}},
                                           {"1f1b", std::nullopt, {one_copy()}},
                                           {"zb1p", std::nullopt, {one_copy()}},
                                           {"orders/mine.csv", std::nullopt, {two_copies()}}});
  const std::vector<double> wanted = {9.45, 9.45, 7.45, 6.45}, measured = {10.5, 10.5, 10.5, 5.25};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ScheduleFigures& run = comparison.runs[i];
    EXPECT_NEAR(run.predicted_ms.value(), wanted[i], 1e-12) << run.schedule;
    EXPECT_NEAR(run.predicted_difference.value(), wanted[i] / measured[i] - 1, 1e-12) << run.schedule;
    EXPECT_FALSE(run.no_prediction) << run.schedule;
  }
  EXPECT_THAT(comparison.notes, Not(Contains(HasSubstr("predicted"))));
}

TEST(Prediction, StandsInTableAndJsonWhereThereIsACostFile) {
  const std::vector<ScheduleRuns> runs = {{"builtin_1f1b", std::nullopt, {one_copy()}},
                                          {"mine.csv", std::nullopt, {two_copies()}}};
  const Comparison with = predicted(runs), without = compare_runs(runs, options());
  const std::string table = to_table(with);
  EXPECT_THAT(table, HasSubstr("\n                   ms per iteration   predicted ms  "));
  EXPECT_THAT(table, HasSubstr("\nbuiltin_1f1b  10.50 (10.25 - 10.75)  9.45 (-10.0%)  "));
  EXPECT_THAT(table, HasSubstr("\nmine.csv         5.25 (5.12 - 5.38)  6.45 (+22.9%)  "));
  EXPECT_THAT(table,
              HasSubstr("\npredicted: an iteration by the costs of c.json, as dualpipe plan gives it, and how far "
                        "that is from the median.\n"));
  EXPECT_THAT(to_table(without), Not(HasSubstr("predicted")));
  const json told = json::parse(to_json(with)), untold = json::parse(to_json(without));
  EXPECT_EQ(told["cost_file"], "c.json");
  EXPECT_NEAR(told["runs"][0]["predicted_ms"].get<double>(), 9.45, 1e-12);
  EXPECT_NEAR(told["runs"][0]["predicted_difference"].get<double>(), -0.1, 1e-12);
  EXPECT_TRUE(untold["cost_file"].is_null());
  EXPECT_TRUE(untold["runs"][0].at("predicted_ms").is_null());
  EXPECT_TRUE(untold["runs"][0].at("predicted_difference").is_null());
}

TEST(Prediction, IsADashWithANoteWhereTheSimulatorDoesNotKnowWhatRan) {
  RunFiles folded = one_copy();
  for (RankTimeline& rank : folded.ranks) {
    rank.num_stages = 4;
    rank.stages = {rank.rank, 3 - rank.rank};
  }
  RunFiles early = one_copy();
  for (RankTimeline& rank : early.ranks) rank.steps.clear();
  const Comparison comparison = predicted({{"megatrons_own", std::nullopt, {one_copy()}},
                                           {"builtin_1f1b", std::nullopt, {folded}},
                                           {"interleaved_1f1b", std::nullopt, {one_copy()}},
                                           {"dualpipe", std::nullopt, {two_copies()}},
                                           {"auto", std::nullopt, {early}},
                                           {"1f1b", std::nullopt, {{metrics({9, 10, 11}), {}}}}});
  const std::vector<std::string> reasons = {
      "megatrons_own takes cannot be predicted: [megatrons_own] must be a schedule that the simulator knows, 1f1b, "
      "dualpipe, dualpipev, interleaved_1f1b, zb1p, got one of the host's own",
      "builtin_1f1b takes cannot be predicted: [builtin_1f1b] must have run the 2 stages that 1f1b has on 2 ranks, got "
      "4",
      "interleaved_1f1b takes cannot be predicted: [interleaved_1f1b] virtual_pipeline_model_parallel_size must be at "
      "least 2, got 1",
      "dualpipe takes cannot be predicted: [dualpipe] num_microbatches must be at least 2 x ",
      "auto takes cannot be predicted: [auto] must have a step that all ranks of a pipeline recorded, got none",
      "1f1b takes cannot be predicted: the timelines say how many ranks and micro-batches there are, and it wrote "
      "none"};
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_FALSE(comparison.runs[i].predicted_ms) << reasons[i];
    EXPECT_FALSE(comparison.runs[i].predicted_difference) << reasons[i];
    EXPECT_THAT(comparison.notes, Contains(StartsWith("'-': what " + reasons[i])));
  }
  EXPECT_THAT(to_table(comparison), HasSubstr("\nmegatrons_own     10.50 (10.25 - 10.75)             -  "));
}

TEST(Prediction, SaysHowStagesWereDividedAndWhereTheyCannotBe) {
  const std::vector<ScheduleRuns> runs = {{"1f1b", std::nullopt, {one_copy()}}};
  const Comparison divided = predicted(runs, 1);
  EXPECT_NEAR(divided.runs[0].predicted_ms.value(), 4.5 + 0.45, 1e-12);
  EXPECT_THAT(divided.notes, Contains("predicted, 1f1b: each of the 1 stages in c.json is divided evenly in 2."));
  EXPECT_THAT(
      predicted(runs, 3).notes,
      Contains("'-': what 1f1b takes cannot be predicted: [c.json] the number of stages must divide the file's 3 "
               "or be a multiple of it, got 2; for example 1 or 3"));
}

TEST(Prediction, HasNoDifferenceFromIterationsThatTakeNoTime) {
  RunFiles run = one_copy();
  for (IterationMetrics& iteration : run.iterations) iteration.ms = 0;
  const ScheduleFigures figures = predicted({{"1f1b", std::nullopt, {run}}}).runs[0];
  EXPECT_NEAR(figures.predicted_ms.value(), 9.45, 1e-12);
  EXPECT_FALSE(figures.predicted_difference);
}

TEST(Comparison, SaysWhoseNormsWereNotCompared) {
  RunFiles bare = one_copy();
  for (IterationMetrics& iteration : bare.iterations) iteration.grad_norm.reset();
  const std::vector<ScheduleRuns> runs = {{"a", std::nullopt, {one_copy()}},
                                          {"b", std::nullopt, {bare}},
                                          {"c", std::nullopt, {bare}},
                                          {"d", "it fell over", {}}};
  EXPECT_THAT(compare_runs({runs[0], runs[1], runs[3]}, options("a")).notes,
              Contains("'-': b wrote no grad_norm into metrics.jsonl, so its gradient norms were not compared."));
  EXPECT_THAT(compare_runs(runs, options("a")).notes,
              Contains("'-': b, c wrote no grad_norm into metrics.jsonl, so their gradient norms were not compared."));
  EXPECT_THAT(compare_runs(runs, options("b")).notes,
              Contains("'-': b, c wrote no grad_norm into metrics.jsonl, so no gradient norm was compared with b's."));
  EXPECT_THAT(compare_runs({runs[0]}, options("a")).notes, Not(Contains(HasSubstr("grad_norm"))));
}

// Differences then refer to the first that did not fail, which the report has to know.
TEST(Comparison, NamesWhatDifferencesReferTo) {
  const Comparison comparison =
      compare_runs({{"a", "it fell over", {}}, {"b", std::nullopt, {one_copy()}}, {"c", std::nullopt, {two_copies()}}},
                   options("a"));
  EXPECT_EQ(comparison.reference, "b");
  EXPECT_THAT(comparison.notes, Contains("There are no speed-ups, since the baseline, a, failed. Differences are those "
                                         "from b."));
  EXPECT_EQ(json::parse(to_json(comparison))["reference"], "b");
  EXPECT_TRUE(json::parse(to_json(compare_runs({{"a", "no", {}}}, options("a"))))["reference"].is_null());
}

TEST(Table, SaysOfWhatWasNotRunThatItDidNotFail) {
  const Comparison comparison =
      compare_runs({{"a", std::nullopt, {one_copy()}}, {"b", std::nullopt, {}}, {"c", "no", {}}}, options("a"));
  EXPECT_THAT(to_table(comparison), HasSubstr("\nNOT RUN b: the comparison stopped before its turn\nFAILED c: no\n"));
  const json runs = json::parse(to_json(comparison))["runs"];
  EXPECT_EQ(runs[0]["not_run"], false);
  EXPECT_EQ(runs[1]["not_run"], true);
  EXPECT_EQ(runs[1]["failure"], "the comparison stopped before its turn");
  EXPECT_EQ(runs[2]["not_run"], false);
}

TEST(Comparison, ChecksEveryRound) {
  RunFiles second = one_copy();
  second.iterations[2].lm_loss *= 1.01;
  const Comparison comparison = compare_runs(
      {{"a", std::nullopt, {one_copy(), second}}, {"b", std::nullopt, {one_copy(), one_copy()}}}, options("a"));
  EXPECT_THAT(comparison.mismatches, ElementsAre("a: the loss curve differs from a's by 1.00e-02, more than "
                                                 "--tolerance-curve = 0.001"));
}

TEST(Table, HasARowPerScheduleAndDashes) {
  const Comparison comparison = compare_runs(
      {{"builtin_1f1b", std::nullopt, {one_copy()}}, {"dualpipe", "exit code 1: it fell over", {}}}, options());
  const std::string text = to_table(comparison);
  EXPECT_THAT(text, HasSubstr("a title: 3 iterations, 1 round, warm-up 1 left out; baseline builtin_1f1b\n"));
  EXPECT_THAT(text, HasSubstr("\nbuiltin_1f1b  10.50 (10.25 - 10.75)"));
  EXPECT_THAT(text, HasSubstr("33.3%        -  66.7%\n"));
  EXPECT_THAT(text, HasSubstr("\nbuiltin_1f1b      1x       1     1000 kB          -      2 x 1/2      -"));
  EXPECT_THAT(text, HasSubstr("\ndualpipe                          -               -"));
  EXPECT_THAT(text, HasSubstr("FAILED dualpipe: exit code 1: it fell over\n"));
}

TEST(ComparisonJson, IsCompleteAndNullWhereNothingIsKnown) {
  RunFiles diverged = two_copies();
  diverged.iterations[1].lm_loss = std::nan("");
  const json text = json::parse(to_json(compare_runs({{"builtin_1f1b", std::nullopt, {one_copy()}},
                                                      {"dualpipe", std::nullopt, {diverged}},
                                                      {"zb1p", "failed: \xff", {}}},
                                                     options())));
  EXPECT_EQ(text["title"], "a title");
  EXPECT_EQ(text["warmup"], 1);
  EXPECT_EQ(text["runs"][0]["measured"]["unit"], "s");
  EXPECT_EQ(text["runs"][0]["measured"]["ranks"][1]["spans"][1], json::array({"1B0", 2.0, 4.0}));
  EXPECT_EQ(text["runs"][0]["simulated"]["ranks"][1]["stages"], json::array({1}));
  EXPECT_TRUE(text["runs"][1]["losses"][1].is_null());
  EXPECT_TRUE(text["runs"][1]["loss_difference"].is_null());
  EXPECT_EQ(text["mismatches"].size(), 1u);
  for (const char* key : {"ms", "speedup", "bubble", "simulated_ms", "parameter_copies", "losses", "measured"})
    EXPECT_TRUE(text["runs"][2].at(key).is_null()) << key;
}

TEST(ComparisonTrace, PutsExchangesThatRanAtOnceOnThreadsOfTheirOwn) {
  RunFiles run = one_copy();
  run.ranks[0].steps[0].phases = {{"0F0 0.attention", 0, 0.5, std::nullopt},
                                  {"0F0 0.dispatch", 0.5, 2, 0.1},
                                  {"0F1 0.dispatch", 1.5, 3, 0.1},
                                  {"0B0 0.combine", 4, 5, 0.1}};
  const std::vector<TraceProcess> processes = trace_processes(compare_runs({{"a", std::nullopt, {run}}}, options("a")));
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[0].name, "a, measured");
  EXPECT_EQ(processes[1].name, "a, simulated");
  std::vector<std::string> lanes;
  for (const TraceLane& lane : processes[0].lanes)
    lanes.push_back(lane.name + ": " + std::to_string(lane.events.size()));
  EXPECT_THAT(lanes, ElementsAre("rank 0: 4", "rank 0, phases: 1", "rank 0, exchanges: 2", "rank 0, exchanges: 1",
                                 "rank 1: 4"));
}

TEST(ComparisonTrace, GivesEveryThreadANumberOfItsOwn) {
  const json events = json::parse(to_trace({{"p", {{"x", {{"0F0", "F", 0, 1}}}, {"y", {}}}}, {"q", {{"x", {}}}}}, 1e6))
                          .at("traceEvents");
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["args"]["name"], "p");
  EXPECT_EQ(events[2],
            (json{{"name", "0F0"}, {"cat", "F"}, {"ph", "X"}, {"ts", 0.0}, {"dur", 1e6}, {"pid", 1}, {"tid", 1}}));
  EXPECT_EQ(events[3]["tid"], 2);
  EXPECT_EQ(events[5]["pid"], 2);
  EXPECT_EQ(events[5]["tid"], 3);
}

}  // namespace
}  // namespace dualpipe
