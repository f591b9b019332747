#include "examples/pretrain_gpt/model/token_loss.h"

#include <ATen/ATen.h>

namespace pretrain_gpt {

at::Tensor token_loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& loss_mask) {
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor scores = rows.scalar_type() == at::kBFloat16 ? rows.to(at::kFloat) : rows;
  const at::Tensor losses = at::cross_entropy_loss(scores, labels.reshape({-1}), {}, at::Reduction::None);
  return (losses * loss_mask.reshape({-1}).to(losses.scalar_type())).sum();
}

double token_loss_weight(const at::Tensor& loss_mask) { return loss_mask.sum(at::kDouble).item<double>(); }

}  // namespace pretrain_gpt
