// examples/pretrain_gpt/model/vocabulary.h
//
// The two ends of a model, whose matrices [vocabulary, hidden] have their rows divided over the tensor-parallel ranks.
// The loss takes the divided logits as they are (examples/pretrain_gpt/model/token_loss.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/weight.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// This rank's rows.
at::Tensor vocabulary_weight(const Config& config, const ModelParallel& parallel, const std::string& logical_name);

// tokens [batch, sequence] int64, the same on all tensor ranks. Gives [batch, sequence, hidden], under sequence
// parallel this rank's part of the sequence. Throws UserError for a token that no rank has.
at::Tensor embed(const at::Tensor& tokens, const at::Tensor& weight, const ModelParallel& parallel);

// hidden as embed() gives it; logits [batch, sequence, this rank's part of the vocabulary].
at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const ModelParallel& parallel);

}  // namespace pretrain_gpt
