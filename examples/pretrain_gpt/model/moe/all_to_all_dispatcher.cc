#include "examples/pretrain_gpt/model/moe/all_to_all_dispatcher.h"

#include <ATen/ATen.h>

#include <utility>

#include "examples/pretrain_gpt/model/moe/gather_rows.h"
#include "examples/pretrain_gpt/model/moe/passing.h"

namespace pretrain_gpt {
namespace {

// Places in the list. The last two are gone after combine().
enum Place : std::size_t {
  kRows,     // [choices, hidden]
  kWeights,  // [tokens, topk]
  kPlaces,   // [choices]: where the row of a token's choice stands among those sent.
  // On the host from dispatch() on, so that later steps do not wait for the device.
  kSent,      // [num_experts]: rows for each expert.
  kReceived,  // [ranks x local experts]: rows from each rank for each local expert.
};

std::vector<std::int64_t> to_vector(const at::Tensor& counts) {
  const at::Tensor packed = counts.contiguous();
  return {packed.const_data_ptr<std::int64_t>(), packed.const_data_ptr<std::int64_t>() + packed.numel()};
}

at::Tensor stable_order(const at::Tensor& keys) { return keys.argsort(/*stable=*/true); }

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(std::int64_t num_experts, LayerGroup group, std::string name)
    : num_experts_(num_experts), group_(std::move(group)), name_(std::move(name)) {}

Tensors AllToAllDispatcher::prepare(const at::Tensor& tokens, const Routing& routing) {
  const at::Tensor choices = routing.experts.flatten();
  const at::Tensor order = stable_order(choices), places = inverse_of(order);
  return {gather_rows(tokens, order, places, routing.experts.size(-1)), routing.weights, places,
          count_choices(choices, num_experts_)};
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::exchange_counts(const Tensors& list) {
  const std::vector<std::int64_t> each(static_cast<std::size_t>(group_.size()), local_experts());
  return between(list, start_all_to_all(list[kSent], {each, each}, group_, name_), {});
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::dispatch(const Tensors& list, std::any& saved) {
  const at::Tensor sent = list[kSent].to(at::kCPU), received = list[kReceived].to(at::kCPU);
  return between({}, move(list[kRows], splits_of(sent, received), saved),
                 {list[kWeights], list[kPlaces], sent, received});
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::dispatch_back(const Tensors& gradients, const std::any& saved) {
  return between({}, move_back(gradients[kRows], saved), {gradients[kWeights], {}, {}, {}});
}

ExpertRows AllToAllDispatcher::arrived(const Tensors& list) {
  const at::Tensor& received = list[kReceived];
  const std::int64_t ranks = group_.size(), experts = local_experts();
  ExpertRows result{list[kRows], to_vector(received.view({ranks, experts}).sum(0)), {}};
  if (ranks > 1 && experts > 1) {
    const auto options = result.rows.options().dtype(at::kLong).requires_grad(false);
    const at::Tensor owners = at::arange(experts, options).repeat({ranks});
    result.order =
        stable_order(owners.repeat_interleave(received.to(options.device()), std::nullopt, result.rows.size(0)));
    result.rows = gather_rows(result.rows, result.order, inverse_of(result.order));
  }
  return result;
}

Tensors AllToAllDispatcher::departing(const Tensors& list, const ExpertRows& rows, const at::Tensor& outputs) {
  Tensors result = list;
  result[kRows] = rows.order.defined() ? gather_rows(outputs, inverse_of(rows.order), rows.order) : outputs;
  return result;
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::combine(const Tensors& list, std::any& saved) {
  return between({}, move(list[kRows], splits_of(list[kReceived], list[kSent]), saved),
                 {list[kWeights], list[kPlaces]});
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::combine_back(const Tensors& gradients, const std::any& saved) {
  return between({}, move_back(gradients[kRows], saved), {gradients[kWeights], {}, {}, {}});
}

at::Tensor AllToAllDispatcher::finish(const Tensors& list) {
  const at::Tensor& weights = list[kWeights];
  const at::Tensor rows = gather_rows(list[kRows], list[kPlaces], inverse_of(list[kPlaces]));
  const at::Tensor by_token = rows.view({weights.size(0), weights.size(1), rows.size(1)});
  return (by_token * weights.unsqueeze(-1)).sum(1).to(rows.scalar_type());
}

RowSplits AllToAllDispatcher::splits_of(const at::Tensor& sent, const at::Tensor& received) const {
  const auto by_rank = [this](const at::Tensor& counts) {
    return to_vector(counts.view({group_.size(), local_experts()}).sum(1));
  };
  return {by_rank(sent), by_rank(received)};
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::move(const at::Tensor& rows, const RowSplits& splits,
                                                         std::any& saved) const {
  saved = Moved{splits, rows.detach().new_empty({0, rows.size(1)})};
  return start_all_to_all(rows, splits, group_, name_);
}

std::unique_ptr<PendingTensors> AllToAllDispatcher::move_back(const at::Tensor& gradient, const std::any& saved) const {
  const auto& [splits, like] = std::any_cast<const Moved&>(saved);
  if (gradient.defined()) {
    return start_all_to_all(gradient, splits.swapped(), group_, name_);
  }
  std::int64_t rows = 0;
  for (const std::int64_t count : splits.receive) {
    rows += count;
  }
  return start_all_to_all(like.new_zeros({rows, like.size(1)}), splits.swapped(), group_, name_);
}

}  // namespace pretrain_gpt
