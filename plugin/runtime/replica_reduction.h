// plugin/runtime/replica_reduction.h
//
// Gradients summed over groups of any size, mirrors times data-parallel ranks, as collectives that start while the
// schedule still computes.
//
// A bucket starts at the REDUCE_GRAD of the last of its stages, once all buckets before it in its group have started,
// and is waited for in finish(). Copies are equal to the bit on all members. What the backend cannot add in its own
// dtype (bfloat16 over Gloo) is added in float32 and rounded once. A parameter that got a gradient on no member keeps
// an undefined one; members without one count as zero. A sparse gradient is refused with ScheduleError before anything
// of its bucket moves.
//
// Sharded, each member ends up with the sum of its own part of every bucket (ReplicaLayout::pieces_of) and zeros
// elsewhere, so that the gradients of all members still add up to the sum: half the traffic where an optimizer works on
// parts anyway (plugin/runtime/distributed_optimizer.h).
#pragma once

#include <functional>
#include <memory>

#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/replica_layout.h"

namespace dualpipe {

struct ReplicaReductionOptions {
  bool shard_gradients = false;
  std::function<void(const ReplicaBucket&)> on_start = {};  // A bucket's collective has been started.
};

// Collectives start in the layout's order on every member, whatever the order of start().
std::unique_ptr<GradientReduction> replica_reduction(std::shared_ptr<const ReplicaLayout> layout,
                                                     ReplicaReductionOptions options = {});

}  // namespace dualpipe
