#include "examples/pretrain_gpt/model/token_loss.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/parallel/tensor_collectives.h"

namespace pretrain_gpt {
namespace {

constexpr std::int64_t kIgnored = -100;  // As in at::cross_entropy_loss.

void refuse_unknown(const at::Tensor& labels, std::int64_t vocabulary) {
  const at::Tensor unknown = labels.lt(0).logical_or(labels.ge(vocabulary)).logical_and(labels.ne(kIgnored));
  if (unknown.any().item<bool>()) {
    throw UserError("model", fmt::format("labels must be from 0 to {}, or {}, got {}; for example 0", vocabulary - 1,
                                         kIgnored, labels.masked_select(unknown)[0].item<std::int64_t>()));
  }
}

// Per token, [rows]: log(sum of exp(scores)) - the label's score, all less the largest score.
at::Tensor divided_losses(const at::Tensor& scores, const at::Tensor& labels, const LayerGroup& tensor) {
  const std::int64_t size = scores.size(1);
  const at::Tensor largest = max_over_tensor_ranks(std::get<0>(scores.detach().max(1)), tensor);
  const at::Tensor shifted = scores - largest.unsqueeze(1);
  const at::Tensor local = labels - tensor.rank() * size;
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(size));
  const at::Tensor index = local.masked_fill(elsewhere, 0).unsqueeze(1);
  const at::Tensor wanted = shifted.gather(1, index).squeeze(1).masked_fill(elsewhere, 0);
  const at::Tensor sums = sum_over_tensor_ranks(at::stack({shifted.exp().sum(1), wanted}), tensor);
  return (sums[0].log() - sums[1]).masked_fill(labels.eq(kIgnored), 0);
}

at::Tensor losses_of(const at::Tensor& scores, const at::Tensor& labels, const LayerGroup& tensor) {
  if (tensor.size() == 1) {
    return at::cross_entropy_loss(scores, labels, {}, at::Reduction::None);
  }
  return divided_losses(scores, labels, tensor);
}

}  // namespace

at::Tensor token_loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& loss_mask,
                          const LayerGroup& tensor) {
  refuse_unknown(labels, logits.size(-1) * tensor.size());
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor scores = rows.scalar_type() == at::kBFloat16 ? rows.to(at::kFloat) : rows;
  const at::Tensor losses = losses_of(scores, labels.reshape({-1}), tensor);
  return (losses * loss_mask.reshape({-1}).to(losses.scalar_type())).sum();
}

double token_loss_weight(const at::Tensor& loss_mask) { return loss_mask.sum(at::kDouble).item<double>(); }

}  // namespace pretrain_gpt
