// examples/pretrain_gpt/model/token_loss.h
//
// The language-model loss of a micro-batch, as a sum and what it weighs: the mean over a global batch is the sum of
// sums over the sum of weights, whatever the number of micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// Cross-entropy summed over valid tokens. logits [batch, sequence, vocabulary], labels int64 and mask [batch,
// sequence]; bfloat16 logits are taken to float32 first. A label of -100 costs nothing.
//
// Where the vocabulary is divided over the ranks of `tensor`, logits are this rank's part, labels and mask the same on
// all of them, and so is the result. Throws UserError for a label that no rank has.
at::Tensor token_loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& loss_mask,
                          const LayerGroup& tensor = {});

// The number of valid tokens.
double token_loss_weight(const at::Tensor& loss_mask);

}  // namespace pretrain_gpt
