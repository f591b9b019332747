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

struct Targets {
  at::Tensor labels;
  at::Tensor loss_mask;
};

// Micro-batch `index` of the current step, by halves: the rank where it enters reads its tokens, the rank where its
// loss is computed its targets. It holds the same samples under every schedule, and may be read in any order, more than
// once.
struct ReadMicroBatch {
  std::function<at::Tensor(int index)> tokens;
  std::function<Targets(int index)> targets;
};

// Both halves from one function.
ReadMicroBatch read_by(std::function<MicroBatch(int index)> read);

}  // namespace pretrain_gpt
