// examples/pretrain_gpt/parallel/groups.h
//
// The process groups of a rank: one of each kind that its layout has, all made at once and in one order on every rank.
//
// Nothing is made later, so no rank ever waits for another to come to a first use. Each group has connections and keys
// of its own: what one of them carries never meets another's messages.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <map>

#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"
#include "examples/pretrain_gpt/parallel/rank_layout.h"

namespace pretrain_gpt {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class ProcessGroups {
 public:
  // Collective over all ranks of the run. Throws UserError where the layout is not for environment.world_size ranks.
  ProcessGroups(const RankLayout& layout, const Environment& environment, const c10::intrusive_ptr<c10d::Store>& store,
                std::chrono::milliseconds timeout);

  const RankLayout& layout() const { return layout_; }
  int rank() const { return rank_; }  // Of all ranks of the run.
  int world_size() const { return layout_.world_size(); }

  // Of all ranks; there with one rank too.
  const Group& world() const { return world_; }
  const Group& pipeline() const { return groups_.at(GroupKind::kPipeline); }  // There with one rank too.
  // Null where the group has this rank alone, but for kPipeline. kExpertTensor is kTensor's, where it is not of one.
  const Group& of(GroupKind kind) const { return groups_.at(kind); }

  // The ranks whose copies of a parameter get the sum of their gradients; null where there is one.
  const Group& gradient_group(const ParameterLayout& layout) const;
  // The ranks that hold equal copies of it, and could divide its optimizer state.
  const Group& copies_group(const ParameterLayout& layout) const;
  // Which part of a parameter this rank holds: "" for all of it, or "tp1", "ep0", "ep0.tp1".
  std::string part_of(const ParameterLayout& layout) const;

  ModelParallel model_parallel(bool sequence_parallel) const;

 private:
  RankLayout layout_;
  int rank_;
  Group world_;
  std::map<GroupKind, Group> groups_;
};

}  // namespace pretrain_gpt
