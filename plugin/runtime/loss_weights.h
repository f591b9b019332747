// plugin/runtime/loss_weights.h
//
// The sum of a step's loss weights over every rank that computes losses: its own for one end, an exchange between the
// two for a bidirectional pipeline, a sum over ParallelGroups::losses where there are other replicas. Started at the
// beginning of a step, waited for by the first backward that needs it.
#pragma once

#include <memory>
#include <optional>

#include "plugin/runtime/group_collectives.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

class LossWeights {
 public:
  // `other_end`: the other rank that computes losses, if any.
  LossWeights(std::shared_ptr<Transport> transport, std::optional<int> other_end);
  // All members compute losses.
  explicit LossWeights(std::shared_ptr<GroupCollectives> members);
  // `local` is the sum over this rank's micro-batches. Never blocks.
  void start(double local);
  // The sum over all of them, 0 where nothing counts. Waits. Throws ScheduleError where it is negative or not finite.
  double total();
  // weight / total(), 0 where nothing counts.
  double share(double weight) { return total() > 0 ? weight / total() : 0; }
  void finish();  // Every start() is followed by one.

 private:
  double sum_of_members();
  double sum_of_ends();

  std::shared_ptr<Transport> transport_;  // One of the two.
  std::shared_ptr<GroupCollectives> members_;
  std::optional<int> other_end_;
  double local_ = 0;
  std::optional<double> total_;
  at::Tensor sent_, received_;
  std::unique_ptr<Transfer> send_, receive_;
  at::Tensor sum_;
  std::unique_ptr<Transfer> reduce_;
};

}  // namespace dualpipe
