// examples/pretrain_gpt/parallel/model_parallel.h
//
// The groups that layers communicate in: what a layer knows of the parallel layout.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>

namespace pretrain_gpt {

// One of a model's groups. A null group is a group of one.
struct LayerGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;

  int rank() const { return group ? group->getRank() : 0; }
  int size() const { return group ? group->getSize() : 1; }
};

struct ModelParallel {
  LayerGroup tensor;         // Ranks that hold parts of the same dense matrices.
  LayerGroup expert;         // Ranks that hold different experts and exchange tokens.
  LayerGroup expert_tensor;  // Ranks that hold parts of the same expert matrices: of one, or `tensor`.
  // Between tensor-parallel regions each rank of `tensor` holds a part of the sequence (dimension 1 of [batch,
  // sequence, hidden]). With it and expert_tensor of one, `expert` may span tensor ranks.
  bool sequence_parallel = false;
};

// How a parameter lies on the ranks.
struct ParameterLayout {
  bool is_expert = false;        // Its copies are on the expert-data-parallel ranks, not on the data-parallel ones.
  bool is_tensor_shard = false;  // This rank holds a part of it; part `tensor.rank()` (experts: expert_tensor.rank()).
  // Each tensor rank has the gradient of its part of the sequence only: to be summed over `tensor` too.
  bool is_sequence_partial = false;
  // How a divided one is: along this dimension, which holds that many matrices of equal size (queries, keys and
  // values), each of them divided.
  std::int64_t dimension = 0, blocks = 1;
};

}  // namespace pretrain_gpt
