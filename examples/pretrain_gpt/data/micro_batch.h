// examples/pretrain_gpt/data/micro_batch.h
//
// What one micro-batch feeds to a model and its loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace pretrain_gpt {

// All three are [micro_batch_size, seq_length].
struct MicroBatch {
  at::Tensor tokens;     // int64
  at::Tensor labels;     // int64, the token that follows each.
  at::Tensor loss_mask;  // float32: 1 where the label counts, 0 where not.
};

// Micro-batch `index` of the current step. It holds the same samples under every schedule, and may be read on any rank,
// in any order, more than once.
using ReadMicroBatch = std::function<MicroBatch(int index)>;

}  // namespace pretrain_gpt
