#include "examples/pretrain_gpt/parallel/rank_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {

ParallelSizes parallel_sizes(const Config& resolved, bool mirrored) {
  return {static_cast<int>(resolved.tensor_model_parallel_size),
          static_cast<int>(resolved.data_parallel_size),
          static_cast<int>(resolved.pipeline_size()),
          static_cast<int>(resolved.expert_model_parallel_size),
          static_cast<int>(resolved.expert_tensor_size()),
          mirrored};
}

const std::vector<GroupKind>& group_kinds() {
  static const std::vector<GroupKind> kinds{GroupKind::kTensor,     GroupKind::kPipeline,     GroupKind::kData,
                                            GroupKind::kExpert,     GroupKind::kExpertTensor, GroupKind::kExpertData,
                                            GroupKind::kTensorData, GroupKind::kEmbeddingData};
  return kinds;
}

std::string name_of(GroupKind kind) {
  switch (kind) {
    case GroupKind::kTensor:
      return "tensor";
    case GroupKind::kPipeline:
      return "pipeline";
    case GroupKind::kData:
      return "data";
    case GroupKind::kExpert:
      return "expert";
    case GroupKind::kExpertTensor:
      return "expert_tensor";
    case GroupKind::kExpertData:
      return "expert_data";
    case GroupKind::kTensorData:
      return "tensor_data";
    case GroupKind::kEmbeddingData:
      return "embedding_data";
  }
  throw UserError("group kind", "must be one of group_kinds()");
}

RankLayout::RankLayout(const ParallelSizes& sizes) : sizes_(sizes) {
  const int expert_ranks = sizes.expert * sizes.expert_tensor;
  if (stage_ranks() % expert_ranks != 0) {
    throw UserError("rank layout", fmt::format("expert_tensor x expert must divide tensor x data = {} x {} = {}, got "
                                               "{} x {} = {}; for example an expert size of 1",
                                               sizes.tensor, sizes.data, stage_ranks(), sizes.expert_tensor,
                                               sizes.expert, expert_ranks));
  }
}

// The same for ranks that hold the same stages.
int RankLayout::folded_pipeline_rank(int rank) const {
  const int place = pipeline_rank(rank);
  return sizes_.mirrored ? std::min(place, sizes_.pipeline - 1 - place) : place;
}

bool RankLayout::is_end(int rank) const {
  return pipeline_rank(rank) == 0 || pipeline_rank(rank) == sizes_.pipeline - 1;
}

bool RankLayout::share_group(GroupKind kind, int a, int b) const {
  const auto dense = [this](int rank) { return std::tuple(tensor_rank(rank), data_rank(rank)); };
  const auto expert = [this](int rank) {
    return std::tuple(pipeline_rank(rank), expert_tensor_rank(rank), expert_data_rank(rank));
  };
  const bool same_stage = pipeline_rank(a) == pipeline_rank(b);
  const bool same_weights = folded_pipeline_rank(a) == folded_pipeline_rank(b);
  switch (kind) {
    case GroupKind::kTensor:
      return same_stage && data_rank(a) == data_rank(b);
    case GroupKind::kPipeline:
      return dense(a) == dense(b);
    case GroupKind::kData:
      return same_weights && tensor_rank(a) == tensor_rank(b);
    case GroupKind::kExpert:
      return expert(a) == expert(b);
    case GroupKind::kExpertTensor:
      return same_stage && a / sizes_.expert_tensor == b / sizes_.expert_tensor;
    case GroupKind::kExpertData:
      return same_weights && expert_tensor_rank(a) == expert_tensor_rank(b) && expert_rank(a) == expert_rank(b);
    case GroupKind::kTensorData:
      return same_weights;
    case GroupKind::kEmbeddingData:
      return a == b || (is_end(a) && is_end(b) && tensor_rank(a) == tensor_rank(b));
  }
  return false;
}

std::vector<int> RankLayout::group_of(GroupKind kind, int rank) const {
  std::vector<int> members;
  for (int other = 0; other < world_size(); ++other) {
    if (share_group(kind, rank, other)) {
      members.push_back(other);
    }
  }
  return members;
}

std::vector<std::vector<int>> RankLayout::groups(GroupKind kind) const {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_size(); ++rank) {
    std::vector<int> members = group_of(kind, rank);
    if (members.front() == rank) {
      groups.push_back(std::move(members));
    }
  }
  return groups;
}

std::string print_groups(const RankLayout& layout) {
  std::string text;
  for (const GroupKind kind : group_kinds()) {
    text += fmt::format("{:<15}", name_of(kind));
    for (const std::vector<int>& members : layout.groups(kind)) {
      text += fmt::format(" [{}]", fmt::join(members, " "));
    }
    text += '\n';
  }
  return text;
}

}  // namespace pretrain_gpt
