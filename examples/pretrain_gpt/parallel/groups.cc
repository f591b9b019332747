#include "examples/pretrain_gpt/parallel/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

RankLayout checked(const RankLayout& layout, int world_size) {
  if (layout.world_size() != world_size) {
    const ParallelSizes& sizes = layout.sizes();
    throw UserError(
        "parallel groups",
        fmt::format("tensor x data x pipeline = {} x {} x {} = {} must be the number of processes, got {}; "
                    "for example start {} processes",
                    sizes.tensor, sizes.data, sizes.pipeline, layout.world_size(), world_size, layout.world_size()));
  }
  return layout;
}

}  // namespace

ProcessGroups::ProcessGroups(const RankLayout& layout, const Environment& environment,
                             const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout)
    : layout_(checked(layout, environment.world_size)), rank_(environment.rank) {
  const GroupMaker maker(store, environment, timeout);
  std::vector<int> all(static_cast<std::size_t>(environment.world_size));
  std::iota(all.begin(), all.end(), 0);
  world_ = maker.make("world", all);
  for (const GroupKind kind : group_kinds()) {
    const std::vector<int> members = layout_.group_of(kind, rank_);
    const bool is_made = kind == GroupKind::kPipeline || (members.size() > 1 && kind != GroupKind::kExpertTensor);
    groups_[kind] = is_made ? maker.make(name_of(kind), members) : Group();
  }
  if (layout_.sizes().expert_tensor > 1) {
    groups_[GroupKind::kExpertTensor] = of(GroupKind::kTensor);
  }
}

const Group& ProcessGroups::gradient_group(const ParameterLayout& layout) const {
  return of(layout.is_expert             ? GroupKind::kExpertData
            : layout.is_sequence_partial ? GroupKind::kTensorData
                                         : GroupKind::kData);
}

const Group& ProcessGroups::copies_group(const ParameterLayout& layout) const {
  return of(layout.is_expert ? GroupKind::kExpertData : GroupKind::kData);
}

std::string ProcessGroups::part_of(const ParameterLayout& layout) const {
  const ParallelSizes& sizes = layout_.sizes();
  std::string part;
  if (layout.is_expert && sizes.expert > 1) {
    part = fmt::format("ep{}", layout_.expert_rank(rank_));
  }
  if (layout.is_tensor_shard) {
    part += part.empty() ? "" : ".";
    part += fmt::format("tp{}", layout.is_expert ? layout_.expert_tensor_rank(rank_) : layout_.tensor_rank(rank_));
  }
  return part;
}

ModelParallel ProcessGroups::model_parallel(bool sequence_parallel) const {
  return {{of(GroupKind::kTensor)}, {of(GroupKind::kExpert)}, {of(GroupKind::kExpertTensor)}, sequence_parallel};
}

}  // namespace pretrain_gpt
