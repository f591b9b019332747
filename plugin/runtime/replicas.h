// plugin/runtime/replicas.h
//
// What a pipeline's ParallelGroups come to: collectives over them, the order of gradient reduction, what the norm
// counts on which rank. Checked among all ranks, so that a mistake of one is an error on all.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/gradient_norm.h"
#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/group_collectives.h"
#include "plugin/runtime/replica_layout.h"

namespace dualpipe {

class Replicas {
 public:
  // Of all ranks that hold a part of the model: ParallelGroups::world, else the pipeline. Local.
  Replicas(const PipelineOptions& options, std::shared_ptr<Transport> pipeline);

  // Collective over the world. Throws ScheduleError on every rank where groups do not fit the parameters.
  void connect(const PipelineOptions& options, const std::vector<StageParameter>& parameters,
               const std::vector<int>& reduction_order, bool computes_losses, std::optional<int> mirror);

  const std::shared_ptr<Collectives>& world() const { return world_; }
  const std::shared_ptr<GroupCollectives>& losses() const { return losses_; }     // Null: the pipeline's ends.
  const std::shared_ptr<const ReplicaLayout>& layout() const { return layout_; }  // Null without groups.
  const std::vector<GradientPart>& parts() const { return parts_; }               // By parameter; empty: all whole.
  // Whose sums the pipeline adds itself, by rank of the pipeline.
  const TiedParameters& tied() const { return tied_; }
  std::vector<int> numbers() const { return numbers_; }  // Of the pipeline's ranks in the world, by rank.

  void abort(const std::string& why);

 private:
  void find_groups(const PipelineOptions& options, const std::vector<StageParameter>& parameters,
                   const std::vector<int>& reduction_order, const std::string& identity);
  void describe_parts(const std::vector<StageParameter>& parameters, bool sharded);
  // Runs `body` and, where it throws on any rank, throws on all.
  void together(const std::function<void()>& body);

  std::shared_ptr<Transport> pipeline_;
  std::shared_ptr<Collectives> world_;
  std::shared_ptr<GroupCollectives> losses_;
  std::shared_ptr<const ReplicaLayout> layout_;
  std::vector<std::string> loss_members_;
  std::vector<GradientPart> parts_;
  TiedParameters tied_;
  std::vector<int> numbers_;
};

}  // namespace dualpipe
