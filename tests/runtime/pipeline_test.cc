// Every schedule beside the whole model in one process, over loopback and over Gloo.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/runtime/comparison.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

struct Case {
  std::string schedule;
  int ranks;
  int num_microbatches;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.schedule << " P=" << c.ranks << " M=" << c.num_microbatches;
}

Comparison comparison_of(const Case& c) { return mlp_comparison(c.schedule, c.ranks, c.num_microbatches); }

class EverySchedule : public testing::TestWithParam<Case> {};

TEST_P(EverySchedule, GivesTheGradientsOfTheWholeModel) { expect_like_whole_model(comparison_of(GetParam())); }

TEST_P(EverySchedule, GivesThemOverGloo) {
  Comparison comparison = comparison_of(GetParam());
  comparison.over_gloo = true;
  expect_like_whole_model(comparison);
}

TEST_P(EverySchedule, AddsUpOverStepsAndWithDeferredWeightGradients) {
  Comparison comparison = comparison_of(GetParam());
  comparison.steps = 3;
  expect_like_whole_model(comparison);
  comparison.options.defer_tail_weight_gradients = true;
  expect_like_whole_model(comparison);
}

TEST_P(EverySchedule, RunsWithVariableShapes) {
  Comparison comparison = comparison_of(GetParam());
  comparison.options.variable_seq_lengths = true;
  comparison.options.slots = 3;
  for (int k = 0; k < GetParam().num_microbatches; ++k) {
    const int rows = 1 + (7 * k) % 5;
    comparison.inputs[k] = {comparison.inputs[k][0].repeat({2, 1}).narrow(0, 0, rows)};
    comparison.labels[k] = {comparison.labels[k][0].repeat({2, 1}).narrow(0, 0, rows)};
  }
  comparison.steps = 2;
  expect_like_whole_model(comparison);
}

TEST_P(EverySchedule, RunsWhatThePlanSaysAndHoldsNoMoreThanItSays) {
  Comparison comparison = comparison_of(GetParam());
  const Schedule plan =
      builtin_registry().make(comparison.schedule, {comparison.ranks, comparison.options.num_microbatches, 2});
  const std::vector<int> peaks = peak_activations(plan);
  comparison.check = [&](Rank& rank, Pipeline&, const StepResult& result) {
    Row ran;
    for (const Span& span : result.statistics.spans) ran.push_back(span.action);
    EXPECT_EQ(print_row(ran), print_row(plan.rows[rank.index]));
    EXPECT_EQ(result.statistics.peak_activations, peaks[rank.index]);
  };
  expect_like_whole_model(comparison);
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         testing::Values(Case{"1f1b", 1, 3}, Case{"1f1b", 2, 4}, Case{"1f1b", 4, 8}, Case{"1f1b", 4, 2},
                                         Case{"interleaved_1f1b", 2, 4}, Case{"interleaved_1f1b", 4, 8},
                                         Case{"zb1p", 1, 2}, Case{"zb1p", 2, 4}, Case{"zb1p", 4, 8}, Case{"zb1p", 4, 3},
                                         Case{"dualpipe", 2, 4}, Case{"dualpipe", 2, 6}, Case{"dualpipe", 4, 8},
                                         Case{"dualpipe", 4, 10}, Case{"dualpipe", 6, 12}, Case{"dualpipe", 8, 20},
                                         Case{"dualpipev", 1, 2}, Case{"dualpipev", 1, 4}, Case{"dualpipev", 2, 4},
                                         Case{"dualpipev", 2, 5}, Case{"dualpipev", 4, 9}));

}  // namespace
}  // namespace dualpipe
