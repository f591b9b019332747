// Mistakes in ParallelGroups: an error on every rank of every replica, before anything hangs or is summed wrongly.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/replicated.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

using Stages = std::vector<std::shared_ptr<StageModule>>;

struct Mistake {
  std::string name;
  std::string schedule;
  std::function<void(Replica&, Stages&, PipelineOptions&)> make;
  std::string message;
};

// Two pipelines of two ranks.
std::vector<std::optional<std::string>> errors_of(const Mistake& mistake) {
  const Comparison comparison = replicated_comparison(mistake.schedule, 2, 4, 2);
  return errors_of_gloo_ranks(4, [&](Rank& rank) {
    Replica replica = make_replica(rank, comparison);
    Stages stages = stages_of_rank(comparison, replica.position);
    PipelineOptions options = comparison.options;
    options.parallel = replica.groups;
    options.timeout = std::chrono::seconds(20);
    mistake.make(replica, stages, options);
    Pipeline pipeline(comparison.schedule, replica.pipeline, stages, options);
    train_once(comparison, replica, pipeline);
  });
}

TEST(ParallelGroups, MistakesAreRefusedOnEveryRank) {
  const std::vector<Mistake> mistakes = {
      {"another parameter on one replica", "1f1b",
       [](Replica& replica, Stages& stages, PipelineOptions&) {
         if (replica.rank.index == 3) stages[0] = mlp_stage(1, 4);
       },
       "must train the same parameters, got"},
      {"a group without the mirror", "dualpipe",
       [](Replica& replica, Stages&, PipelineOptions& options) {
         for (int position : {0, 1}) {
           auto group = make_subgroup(replica.rank, "own" + std::to_string(position), {position, position + 2});
           if (group) options.parallel.gradients = {{group, {}}};
         }
       },
       "of a pipeline must be members of one gradient group, got one of rank 0 without rank 1"},
      {"no losses", "1f1b", [](Replica&, Stages&, PipelineOptions& options) { options.parallel.losses = {}; },
       "`losses` must be all ranks that compute losses where gradients are summed over several pipelines, got null on "
       "rank 1; give the group of both ends x data parallel ranks"},
      {"losses on one rank alone", "1f1b",
       [](Replica& replica, Stages&, PipelineOptions& options) {
         if (replica.index == 1) options.parallel.losses = {};
       },
       "`losses` must be of one size on all ranks that compute losses, got 2 on rank 1 and none on rank 3"},
      {"losses of one end", "dualpipe",
       [](Replica& replica, Stages&, PipelineOptions& options) {
         for (int position : {0, 1}) {
           auto group = make_subgroup(replica.rank, "end" + std::to_string(position), {position, position + 2});
           if (group) options.parallel.losses = group;
         }
       },
       "`losses` must hold all ranks of a pipeline that compute losses, got one of rank 0 without rank 1"},
      {"a group that one replica forgot", "1f1b",
       [](Replica& replica, Stages&, PipelineOptions& options) {
         if (replica.rank.index == 2)
           options.parallel.gradients[0].holds = [](const std::string& name) { return name != "stage0.bias"; };
       },
       "copies of \"stage0.bias\" must be summed over groups of one size, got 2 on rank 0 and 1 on rank 2"},
      {"another schedule on one replica", "1f1b",
       [](Replica& replica, Stages&, PipelineOptions& options) {
         if (replica.index == 1) options.num_microbatches = 6;
       },
       "[pipeline] ranks disagree about num_microbatches: 4 on rank 0, 6 on rank 2"},
      {"shards of nothing", "1f1b",
       [](Replica&, Stages&, PipelineOptions& options) {
         options.parallel.gradients.clear();
         options.shard_gradients = true;
       },
       "shard_gradients needs parallel.gradients, the groups to divide them over, and parallel.world"},
      {"buckets of nothing", "1f1b",
       [](Replica&, Stages&, PipelineOptions& options) { options.gradient_bucket_bytes = 0; },
       "gradient_bucket_bytes must be at least 1, got 0; 25 << 20 works"},
      {"other values on one replica", "dualpipe",
       [](Replica& replica, Stages& stages, PipelineOptions&) {
         at::NoGradGuard no_grad;
         if (replica.index == 1) stages[0]->parameters()[0].add_(1);
       },
       "must start with the same values (one seed, one checkpoint)"},
  };
  for (const Mistake& mistake : mistakes) {
    for (const auto& error : errors_of(mistake))
      EXPECT_THAT(error.value_or("none"), HasSubstr(mistake.message)) << mistake.name;
  }
}

// The failing rank's number is that of the world; the other replica, too, hears of it at once.
TEST(ParallelGroups, AFailureEndsAllReplicas) {
  Comparison comparison = replicated_comparison("dualpipe", 2, 4, 2);
  const auto errors = errors_of_gloo_ranks(4, [&](Rank& rank) {
    Replica replica = make_replica(rank, comparison);
    auto stages = stages_of_rank(comparison, replica.position);
    if (rank.index == 3) {
      const auto parameters = stages[0]->named_parameters();
      stages[0] = function_stage(
          {{"up", parameters["module.up"]}, {"bias", parameters["module.bias"]}, {"down", parameters["module.down"]}},
          [](const TensorList&) -> TensorList { throw std::runtime_error("broken"); });
    }
    PipelineOptions options = comparison.options;
    options.parallel = replica.groups;
    options.timeout = std::chrono::seconds(40);
    options.failures = rank.failures;
    Pipeline pipeline(comparison.schedule, replica.pipeline, stages, options);
    train_once(comparison, replica, pipeline);
  });
  for (const auto& error : errors) EXPECT_THAT(error.value_or("none"), HasSubstr("rank 3 failed in"));
}

}  // namespace
}  // namespace dualpipe
