// Data parallelism beside every schedule: several pipelines, each with its own data, like one process with all of it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/replicated.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

struct Case {
  std::string schedule;
  int ranks;
  int num_microbatches;
  int replicas = 2;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.schedule << " P=" << c.ranks << " M=" << c.num_microbatches << " DP=" << c.replicas;
}

Comparison comparison_of(const Case& c) {
  return replicated_comparison(c.schedule, c.ranks, c.num_microbatches, c.replicas);
}

class EveryScheduleReplicated : public testing::TestWithParam<Case> {};

// Buckets of one parameter each, so that there are several, and the first of them starts behind work that is left.
TEST_P(EveryScheduleReplicated, GivesTheGradientsOfTheWholeModel) {
  Comparison comparison = comparison_of(GetParam());
  comparison.steps = 2;
  comparison.options.gradient_bucket_bytes = 8;
  comparison.options.mean_loss_on_every_rank = true;
  comparison.check = [&](Rank&, Pipeline& pipeline, const StepResult& result) {
    const StepStatistics& statistics = result.statistics;
    ASSERT_EQ(statistics.reductions.size(), pipeline.parameters().size());
    if (pipeline.stages().size() > 1) {
      EXPECT_LT(statistics.reductions.front().after_spans, statistics.spans.size()) << "overlaps the schedule's tail";
    }
  };
  expect_replicas_like_whole_model(comparison, GetParam().replicas);
}

TEST_P(EveryScheduleReplicated, AlsoShardedWhenThePartsAreAdded) {
  Comparison comparison = comparison_of(GetParam());
  comparison.options.shard_gradients = true;
  const auto oracle = all_stages(comparison);
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  std::map<std::string, at::Tensor> by_name;
  for (std::size_t stage = 0; stage < oracle.size(); ++stage) {
    for (const auto& item : oracle[stage]->named_parameters()) {
      by_name[oracle[stage]->logical_name(static_cast<int>(stage), item.key())] = item.value();
    }
  }
  run_replicas(comparison, GetParam().replicas, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    train_once(comparison, replica, pipeline);
    for (std::size_t i = 0; i < pipeline.parameters().size(); ++i) {
      const StageParameter& parameter = pipeline.parameters()[i];
      const GradientPart& part = pipeline.gradient_parts()[i];
      const at::Tensor whole = by_name.at(parameter.name).grad();
      at::Tensor mine = at::zeros_like(whole);
      mine.view({-1}).slice(0, part.begin, part.end).copy_(whole.view({-1}).slice(0, part.begin, part.end));
      expect_close(parameter.parameter.grad(), mine, 1e-10, parameter.name);
      std::vector<at::Tensor> sum{parameter.parameter.grad().clone()};
      replica.groups.gradients[0].group->allreduce(sum)->wait();
      expect_close(sum[0], whole, 1e-10, "the sum of all parts of " + parameter.name);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryScheduleReplicated,
                         testing::Values(Case{"1f1b", 1, 3}, Case{"1f1b", 2, 4, 3}, Case{"1f1b", 4, 6},
                                         Case{"interleaved_1f1b", 2, 4}, Case{"interleaved_1f1b", 4, 8},
                                         Case{"zb1p", 2, 4}, Case{"zb1p", 4, 8}, Case{"dualpipe", 2, 4, 1},
                                         Case{"dualpipe", 2, 4, 4}, Case{"dualpipe", 4, 10}, Case{"dualpipev", 1, 4, 4},
                                         Case{"dualpipev", 2, 5}, Case{"dualpipev", 4, 8}));

}  // namespace
}  // namespace dualpipe
