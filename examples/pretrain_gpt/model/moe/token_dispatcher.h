// examples/pretrain_gpt/model/moe/token_dispatcher.h
//
// Brings tokens to the experts that they chose, on whichever rank, and the experts' outputs back: the seam behind which
// a library of communication kernels can stand.
//
// Between its steps travels a list of tensors that only the dispatcher reads:
//   prepare > exchange_counts > dispatch > arrived, then the experts > departing > combine > finish
// One micro-batch uses one `saved` per exchange, first forth and then back. Exchanges never wait and build no graph;
// floating-point tensors that they make require a gradient where those that they are made of do. The other steps are
// differentiable and local. All ranks of the group take all steps in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <memory>
#include <vector>

#include "examples/pretrain_gpt/model/moe/routing.h"
#include "examples/pretrain_gpt/model/phase.h"

namespace pretrain_gpt {

// The tokens of this rank's experts: first those of its first expert.
struct ExpertRows {
  at::Tensor rows;                   // [sum of counts, hidden]
  std::vector<std::int64_t> counts;  // Rows of each local expert; 0 is legal.
  at::Tensor order;                  // The dispatcher's own.
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  // tokens: [tokens, hidden]; routing: [tokens, topk].
  virtual Tensors prepare(const at::Tensor& tokens, const Routing& routing) = 0;
  // The result is the list and what else it adds; nothing of that carries a gradient.
  virtual std::unique_ptr<PendingTensors> exchange_counts(const Tensors& list) = 0;

  virtual std::unique_ptr<PendingTensors> dispatch(const Tensors& list, std::any& saved) = 0;
  // From gradients of the results, undefined where there is none, those of the list.
  virtual std::unique_ptr<PendingTensors> dispatch_back(const Tensors& gradients, const std::any& saved) = 0;

  virtual ExpertRows arrived(const Tensors& list) = 0;
  // `rows` is what arrived() made of this list, `outputs` has the same shape.
  virtual Tensors departing(const Tensors& list, const ExpertRows& rows, const at::Tensor& outputs) = 0;

  virtual std::unique_ptr<PendingTensors> combine(const Tensors& list, std::any& saved) = 0;
  virtual std::unique_ptr<PendingTensors> combine_back(const Tensors& gradients, const std::any& saved) = 0;

  // [tokens, hidden]: for each token the sum of its experts' outputs times their weights, in the order of its choices.
  virtual at::Tensor finish(const Tensors& list) = 0;
};

}  // namespace pretrain_gpt
