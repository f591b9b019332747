// examples/pretrain_gpt/model/moe/all_to_all_dispatcher.h
//
// A token dispatcher on the process group's own all-to-all: a row for each choice of a token, in the order of the
// experts and then of the tokens. Weights stay at home: the rows that come back are weighted and added there, so that
// sums do not depend on where the experts are.
#pragma once

#include <string>

#include "examples/pretrain_gpt/model/moe/token_dispatcher.h"
#include "examples/pretrain_gpt/parallel/all_to_all.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class AllToAllDispatcher : public TokenDispatcher {
 public:
  // The group's ranks hold equal numbers of experts, in order. `name` stands in messages.
  AllToAllDispatcher(std::int64_t num_experts, LayerGroup group, std::string name);

  Tensors prepare(const at::Tensor& tokens, const Routing& routing) override;
  std::unique_ptr<PendingTensors> exchange_counts(const Tensors& list) override;
  std::unique_ptr<PendingTensors> dispatch(const Tensors& list, std::any& saved) override;
  std::unique_ptr<PendingTensors> dispatch_back(const Tensors& gradients, const std::any& saved) override;
  ExpertRows arrived(const Tensors& list) override;
  Tensors departing(const Tensors& list, const ExpertRows& rows, const at::Tensor& outputs) override;
  std::unique_ptr<PendingTensors> combine(const Tensors& list, std::any& saved) override;
  std::unique_ptr<PendingTensors> combine_back(const Tensors& gradients, const std::any& saved) override;
  at::Tensor finish(const Tensors& list) override;

 private:
  // What a way back needs.
  struct Moved {
    RowSplits splits;
    at::Tensor like;  // No rows.
  };

  std::int64_t local_experts() const { return num_experts_ / group_.size(); }
  RowSplits splits_of(const at::Tensor& sent, const at::Tensor& received) const;
  std::unique_ptr<PendingTensors> move(const at::Tensor& rows, const RowSplits& splits, std::any& saved) const;
  std::unique_ptr<PendingTensors> move_back(const at::Tensor& gradient, const std::any& saved) const;

  std::int64_t num_experts_;
  LayerGroup group_;
  std::string name_;
};

}  // namespace pretrain_gpt
