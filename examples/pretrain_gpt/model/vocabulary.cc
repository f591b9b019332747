#include "examples/pretrain_gpt/model/vocabulary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

namespace pretrain_gpt {
namespace {

void refuse_unknown(const at::Tensor& tokens, std::int64_t vocabulary) {
  const at::Tensor unknown = tokens.lt(0).logical_or(tokens.ge(vocabulary));
  if (unknown.any().item<bool>()) {
    throw UserError("model", fmt::format("tokens must be from 0 to {}, got {}; for example 0", vocabulary - 1,
                                         tokens.masked_select(unknown)[0].item<std::int64_t>()));
  }
}

// Rows of other ranks are 0 here.
at::Tensor own_rows(const at::Tensor& tokens, const at::Tensor& weight, const LayerGroup& tensor) {
  const at::Tensor local = tokens - tensor.rank() * weight.size(0);
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(weight.size(0)));
  return at::embedding(weight, local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0);
}

}  // namespace

at::Tensor vocabulary_weight(const Config& config, const ModelParallel& parallel, const std::string& logical_name) {
  return normal_weight(config, logical_name, {config.vocab_size, config.hidden_size}, config.init_method_std,
                       {.dimension = 0, .index = parallel.tensor.rank(), .count = parallel.tensor.size()});
}

at::Tensor embed(const at::Tensor& tokens, const at::Tensor& weight, const ModelParallel& parallel) {
  refuse_unknown(tokens, weight.size(0) * parallel.tensor.size());
  return parallel.tensor.size() == 1 ? at::embedding(weight, tokens)
                                     : leave_tensor_region(own_rows(tokens, weight, parallel.tensor), parallel);
}

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const ModelParallel& parallel) {
  return at::linear(enter_tensor_region(hidden, parallel), weight);
}

}  // namespace pretrain_gpt
