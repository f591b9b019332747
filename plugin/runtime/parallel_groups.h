// plugin/runtime/parallel_groups.h
//
// What a host's other dimensions of parallelism (data, tensor, expert) mean to a pipeline: over which ranks gradients
// are summed, loss weights counted, and the norm taken. The groups are the host's; each contains this rank, and all
// its members construct their pipelines with it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <string>
#include <vector>

namespace dualpipe {

// The gradients of some parameters are summed over the ranks of one group, mirrors included: for dense parameters
// {r, P-1-r} x DP under DualPipe and DP under the others, for expert parameters the same with the expert-data-parallel
// ranks, for the norms of a sequence-parallel model times TP.
struct GradientGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;                // Null: this rank alone.
  std::function<bool(const std::string& logical_name)> holds;  // Empty: every parameter that no earlier group holds.
};

// All empty: a pipeline alone, whose mirrors exchange gradients over its transport.
struct ParallelGroups {
  // Every parameter belongs to the first group that holds it; one that none holds is this rank's alone. Tied weights
  // whose two ranks are not in one group are added along the pipeline afterwards (not with shard_gradients).
  std::vector<GradientGroup> gradients = {};
  // On ranks that compute losses: all that do with other data, {both ends} x DP. Null: this pipeline's ends.
  c10::intrusive_ptr<c10d::ProcessGroup> losses = {};
  // All ranks that hold a part of the model; the norm is taken and copies are compared over it. Null: this pipeline.
  c10::intrusive_ptr<c10d::ProcessGroup> world = {};
  // Which part of a logical parameter this rank holds ("tp1" of a column-parallel weight); empty function or "": all
  // of it. Parts are parameters of their own for the norm and for the comparison of copies.
  std::function<std::string(const std::string& logical_name)> shard_of = {};

  bool alone() const { return gradients.empty() && !losses && !world; }
};

}  // namespace dualpipe
