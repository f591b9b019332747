// tests/runtime/replicated.h
//
// Several pipelines side by side over Gloo, each with its own micro-batches: data parallelism as a host sets it up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/comparison.h"

namespace dualpipe {

struct Replica {
  Rank& rank;        // Of all.
  int index = 0;     // Which pipeline.
  int position = 0;  // In the pipeline.
  c10::intrusive_ptr<c10d::ProcessGroup> pipeline;
  ParallelGroups groups;
};

// A group of some ranks of all, made by its members alone; null for the others. `name` is one per group.
c10::intrusive_ptr<c10d::ProcessGroup> make_subgroup(Rank& rank, const std::string& name,
                                                     const std::vector<int>& members);

// Of `schedule` on `ranks` times `replicas` ranks, all stages' gradient groups and those of losses and of all.
Replica make_replica(Rank& rank, const Comparison& comparison);

// comparison.ranks are those of one pipeline; inputs and labels those of all replicas, one after another.
void run_replicas(const Comparison& comparison, int replicas, const std::function<void(Replica&)>& body);

// With the replica's groups in comparison.options.
Pipeline make_pipeline(const Comparison& comparison, const Replica& replica,
                       std::vector<std::shared_ptr<StageModule>> stages);

// The replica's part of the global batch.
StepResult train_once(const Comparison& comparison, const Replica& replica, Pipeline& pipeline);

// Gradients and losses of every replica beside the whole model on the whole batch, and copies equal to the bit.
// `comparison.check` is called as in expect_like_whole_model().
void expect_replicas_like_whole_model(const Comparison& comparison, int replicas);

// mlp_comparison() for a global batch of `replicas` times `num_microbatches`.
Comparison replicated_comparison(const std::string& schedule, int ranks, int num_microbatches, int replicas);

}  // namespace dualpipe
