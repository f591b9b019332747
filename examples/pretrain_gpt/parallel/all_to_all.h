// examples/pretrain_gpt/parallel/all_to_all.h
//
// Rows to and from every rank of a group, as many as each has for the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/model/phase.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// One count per rank; 0 is legal. What one rank sends another must be what that one receives from it.
struct RowSplits {
  std::vector<std::int64_t> send, receive;

  RowSplits swapped() const { return {receive, send}; }
};

// rows: [rows, ...] of any type, first those for rank 0. The result is one tensor, first the rows from rank 0, a leaf
// that requires a gradient if `rows` does; the way back of gradients is the exchange with swapped splits. A group of
// one moves nothing. Throws UserError with `origin` before anything is sent where the splits do not fit the rows.
std::unique_ptr<PendingTensors> start_all_to_all(const at::Tensor& rows, const RowSplits& splits,
                                                 const LayerGroup& group, const std::string& origin);

}  // namespace pretrain_gpt
