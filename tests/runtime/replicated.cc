#include "tests/runtime/replicated.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "tests/support/gloo_group.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

constexpr std::chrono::seconds kTimeout{15};

Placement placement_of(const Comparison& comparison) {
  return comparison.options.registry
      .make(comparison.schedule, {comparison.ranks, comparison.options.num_microbatches,
                                  comparison.options.virtual_pipeline_model_parallel_size})
      .placement;
}

// These positions of every pipeline.
std::vector<int> across(const std::set<int>& positions, int ranks, int all) {
  std::vector<int> members;
  for (int rank = 0; rank < all; ++rank) {
    if (positions.contains(rank % ranks)) members.push_back(rank);
  }
  return members;
}

std::set<int> loss_positions(const Placement& placement, int num_microbatches) {
  std::set<int> positions;
  for (int k = 0; k < num_microbatches; ++k) positions.insert(placement.loss_rank(k));
  return positions;
}

std::vector<int> micro_batches_of(const std::vector<int>& own, const Replica& replica, const Comparison& comparison) {
  std::vector<int> global;
  for (int k : own) global.push_back(k + replica.index * comparison.options.num_microbatches);
  return global;
}

// Every rank's gradients by name: equal tensors wherever a name appears.
class Copies {
 public:
  void add(const Pipeline& pipeline) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < pipeline.parameters().size(); ++i) {
      const at::Tensor gradient = pipeline.gradients().gradient(i);
      const auto [first, is_new] = by_name_.try_emplace(pipeline.parameters()[i].name, gradient);
      ASSERT_EQ(first->second.defined(), gradient.defined()) << first->first;
      if (!gradient.defined()) continue;
      EXPECT_TRUE(at::equal(first->second, gradient)) << first->first;
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> by_name_;
};

void compare(const Comparison& comparison, const Replica& replica, const Pipeline& pipeline, const StepResult& result,
             const std::vector<std::shared_ptr<StageModule>>& stages,
             const std::vector<std::shared_ptr<StageModule>>& oracle, const WholeModelResult& wanted) {
  const std::vector<int> mine = micro_batches_of(pipeline.loss_micro_batches(), replica, comparison);
  ASSERT_EQ(result.losses.size(), mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    expect_close(result.losses[i], wanted.losses[mine[i]], comparison.tolerance, fmt::format("loss {}", mine[i]));
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto expected = oracle[pipeline.stages()[i]]->named_parameters();
    for (const auto& item : stages[i]->named_parameters()) {
      expect_close(item.value().grad(), expected[item.key()].grad(), comparison.tolerance,
                   fmt::format("gradient of {} in stage {}", item.key(), pipeline.stages()[i]));
    }
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_subgroup(Rank& rank, const std::string& name,
                                                     const std::vector<int>& members) {
  const auto found = std::find(members.begin(), members.end(), rank.index);
  if (found == members.end()) return {};
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, rank.store);
  return make_gloo_group(prefixed, static_cast<int>(found - members.begin()), static_cast<int>(members.size()),
                         kTimeout);
}

Replica make_replica(Rank& rank, const Comparison& comparison) {
  const int ranks = comparison.ranks;
  const Placement placement = placement_of(comparison);
  Replica replica{rank, rank.index / ranks, rank.index % ranks, {}, {}};
  std::vector<int> own(ranks);
  for (int i = 0; i < ranks; ++i) own[i] = replica.index * ranks + i;
  replica.pipeline = make_subgroup(rank, fmt::format("pipeline{}", replica.index), own);
  for (int position = 0; position < ranks; ++position) {
    const int mirror = placement.mirror_of(position).value_or(position);
    if (mirror < position) continue;
    auto group =
        make_subgroup(rank, fmt::format("gradients{}", position), across({position, mirror}, ranks, rank.size));
    if (group) replica.groups.gradients.push_back({group, {}});
  }
  const std::set<int> losses = loss_positions(placement, comparison.options.num_microbatches);
  replica.groups.losses = make_subgroup(rank, "losses", across(losses, ranks, rank.size));
  replica.groups.world = rank.group;
  return replica;
}

void run_replicas(const Comparison& comparison, int replicas, const std::function<void(Replica&)>& body) {
  run_gloo_ranks(comparison.ranks * replicas, [&](Rank& rank) {
    Replica replica = make_replica(rank, comparison);
    const ParallelGroups groups = replica.groups;  // A group that one rank drops breaks it for those still connecting.
    body(replica);
    rank.transport->all_gather("done");
  });
}

Pipeline make_pipeline(const Comparison& comparison, const Replica& replica,
                       std::vector<std::shared_ptr<StageModule>> stages) {
  PipelineOptions options = comparison.options;
  options.timeout = std::chrono::seconds(30);
  options.parallel = replica.groups;
  return Pipeline(comparison.schedule, replica.pipeline, std::move(stages), std::move(options));
}

StepResult train_once(const Comparison& comparison, const Replica& replica, Pipeline& pipeline) {
  return pipeline.step(select(comparison.inputs, micro_batches_of(pipeline.input_micro_batches(), replica, comparison)),
                       select(comparison.labels, micro_batches_of(pipeline.loss_micro_batches(), replica, comparison)),
                       comparison.criterion);
}

void expect_replicas_like_whole_model(const Comparison& comparison, int replicas) {
  SCOPED_TRACE(fmt::format("{} replicas of {} on {} ranks, {} micro-batches", replicas, comparison.schedule,
                           comparison.ranks, comparison.options.num_microbatches));
  const auto oracle = all_stages(comparison);
  WholeModelResult wanted;
  for (int step = 0; step < comparison.steps; ++step) {
    wanted = run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  }
  Copies copies;
  run_replicas(comparison, replicas, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    StepResult result;
    for (int step = 0; step < comparison.steps; ++step) {
      result = train_once(comparison, replica, pipeline);
      pipeline.finish_gradients();
    }
    compare(comparison, replica, pipeline, result, stages, oracle, wanted);
    if (comparison.options.mean_loss_on_every_rank) {
      EXPECT_NEAR(*result.mean_loss, wanted.global_loss, 1e-10 * std::abs(wanted.global_loss));
    }
    copies.add(pipeline);
    if (comparison.check) comparison.check(replica.rank, pipeline, result);
  });
}

Comparison replicated_comparison(const std::string& schedule, int ranks, int num_microbatches, int replicas) {
  Comparison comparison = mlp_comparison(schedule, ranks, num_microbatches);
  comparison.inputs = random_micro_batches(num_microbatches * replicas, {4, 8}, 3);
  comparison.labels = random_micro_batches(num_microbatches * replicas, {4, 8}, 4);
  return comparison;
}

}  // namespace dualpipe
