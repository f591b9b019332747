// examples/pretrain_gpt/parallel/rank_layout.h
//
// Which ranks form a group in each dimension of parallelism: Megatron's order tp-cp-ep-dp-pp without context
// parallelism.
//
// Dense layers see      rank = tensor + TP (data + DP pipeline)
// and experts, of the same ranks,
//                       rank = expert_tensor + ETP (expert + EP (expert_data + EDP pipeline)),
// with TP DP = ETP EP EDP ranks in a pipeline stage. So tensor ranks are neighbours, and expert-parallel ranks are
// data-parallel (and, where ETP is 1, tensor) ranks of the dense layers. No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

struct ParallelSizes {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  int expert = 1;
  int expert_tensor = 1;
  // Pipeline ranks r and P-1-r hold the same stages (DualPipe): their data-parallel groups are one.
  bool mirrored = false;
};

ParallelSizes parallel_sizes(const Config& resolved, bool mirrored);

enum class GroupKind {
  kTensor,         // Parts of the same dense matrices.
  kPipeline,       // Stages of one pipeline.
  kData,           // Copies of the same dense parameters, mirrors included.
  kExpert,         // Different experts of the same layers.
  kExpertTensor,   // Parts of the same experts' matrices.
  kExpertData,     // Copies of the same experts, mirrors included.
  kTensorData,     // kTensor x kData: all that hold a dense parameter that is not divided, mirrors included.
  kEmbeddingData,  // kData of the pipeline's first and last rank together: copies of a tied embedding. Others: alone.
};

// In the order in which groups are made.
const std::vector<GroupKind>& group_kinds();

// "tensor", "expert_data"
std::string name_of(GroupKind kind);

class RankLayout {
 public:
  // Throws UserError where ETP EP does not divide TP DP.
  explicit RankLayout(const ParallelSizes& sizes);

  const ParallelSizes& sizes() const { return sizes_; }
  int world_size() const { return stage_ranks() * sizes_.pipeline; }

  int tensor_rank(int rank) const { return rank % sizes_.tensor; }
  int data_rank(int rank) const { return rank / sizes_.tensor % sizes_.data; }
  int pipeline_rank(int rank) const { return rank / stage_ranks(); }
  int expert_tensor_rank(int rank) const { return rank % sizes_.expert_tensor; }
  int expert_rank(int rank) const { return rank / sizes_.expert_tensor % sizes_.expert; }
  int expert_data_rank(int rank) const { return rank % stage_ranks() / (sizes_.expert_tensor * sizes_.expert); }

  // Every rank is in exactly one of them. Members ascend, and groups ascend by their first member.
  std::vector<std::vector<int>> groups(GroupKind kind) const;
  std::vector<int> group_of(GroupKind kind, int rank) const;

 private:
  int stage_ranks() const { return sizes_.tensor * sizes_.data; }
  int folded_pipeline_rank(int rank) const;
  bool is_end(int rank) const;
  bool share_group(GroupKind kind, int a, int b) const;

  ParallelSizes sizes_;
};

// All groups, a line per kind: "data            [0 2] [1 3]".
std::string print_groups(const RankLayout& layout);

}  // namespace pretrain_gpt
