// examples/pretrain_gpt/model/token_loss.h
//
// The language-model loss of a micro-batch, as a sum and what it weighs: the mean over a global batch is the sum of
// sums over the sum of weights, whatever the number of micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

namespace pretrain_gpt {

// Cross-entropy summed over valid tokens. logits [batch, sequence, vocabulary], labels int64 and mask [batch,
// sequence]; bfloat16 logits are taken to float32 first.
at::Tensor token_loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& loss_mask);

// The number of valid tokens.
double token_loss_weight(const at::Tensor& loss_mask);

}  // namespace pretrain_gpt
