#include "examples/pretrain_gpt/model/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

namespace pretrain_gpt {

Attention::Attention(const Config& config, const ModelParallel& parallel, std::int64_t layer, const std::string& name,
                     std::shared_ptr<const Rotary> rotary)
    : parallel_(parallel),
      rotary_(std::move(rotary)),
      dropout_(config, layer),
      dropout_p_(config.attention_dropout),
      head_size_(config.hidden_size / config.num_attention_heads),
      heads_(part_size(config.num_attention_heads, parallel.tensor.size())) {
  const std::int64_t h = config.hidden_size, rank = parallel.tensor.rank(), ranks = parallel.tensor.size();
  qkv_ = register_module(
      "qkv", std::make_shared<Weight>(normal_weight(config, name + ".qkv.weight", {3 * h, h}, config.init_method_std,
                                                    {.dimension = 0, .blocks = 3, .index = rank, .count = ranks})));
  proj_ = register_module(
      "proj", std::make_shared<Weight>(normal_weight(config, name + ".proj.weight", {h, h}, residual_std(config),
                                                     {.dimension = 1, .index = rank, .count = ranks})));
}

at::Tensor Attention::forward(const at::Tensor& x, const ForwardPass& pass) {
  const at::Tensor entered = enter_tensor_region(x, parallel_);
  const std::int64_t batch = entered.size(0), length = entered.size(1);
  const at::Tensor qkv =
      at::linear(entered, qkv_->weight).view({batch, length, 3, heads_, head_size_}).permute({2, 0, 3, 1, 4});
  const at::Tensor mixed =
      mix(rotary_->apply(qkv.select(0, 0)), rotary_->apply(qkv.select(0, 1)), qkv.select(0, 2), pass);
  const at::Tensor rows = mixed.transpose(1, 2).reshape({batch, length, heads_ * head_size_});
  return leave_tensor_region(at::linear(rows, proj_->weight), parallel_);
}

at::Tensor Attention::mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const ForwardPass& pass) const {
  if (dropout_p_ == 0 || !pass.is_training) {
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
  }
  const at::Tensor scores = at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(head_size_));
  const std::int64_t length = scores.size(3);
  const at::Tensor later = at::ones({length, length}, scores.options().dtype(at::kBool)).triu(1);
  const at::ScalarType wide = scores.scalar_type() == at::kBFloat16 ? at::kFloat : scores.scalar_type();
  const at::Tensor shares = at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1, wide)
                                .to(value.scalar_type());
  return at::matmul(dropout_.apply(shares, dropout_p_, pass, "probabilities", parallel_.tensor.rank()), value);
}

}  // namespace pretrain_gpt
