// examples/pretrain_gpt/model/moe/moe_mlp.h
//
// A mixture of experts in the place of a layer's MLP: router, exchange of tokens, experts, exchange back, and a shared
// expert beside them. Dropless: an expert takes all the tokens that chose it.
//
// Parameters: `router.weight`, `experts.<global index>.{gate_up,down}.weight` of this rank's experts,
// `shared_expert.{gate_up,down}.weight`; buffer `router.expert_bias`. They are drawn whole by logical name, so every
// division gives the same model.
//
// With tensor ranks:
//   expert_tensor of their size  every tensor rank sends all tokens; expert matrices are divided like those of an MLP.
//                                Entering copies the tokens (sequence parallel: gathers the sequence), leaving sums
//                                over the tensor ranks (scatters the sum).
//   expert_tensor of one         needs sequence parallel: each tensor rank sends the tokens of its part.
//
// The router works on the tokens of this rank's part in both cases.
#pragma once

#include <torch/nn/module.h>

#include <any>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/moe/experts.h"
#include "examples/pretrain_gpt/model/moe/router.h"
#include "examples/pretrain_gpt/model/moe/token_dispatcher.h"
#include "examples/pretrain_gpt/model/phase.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class MoeMlp : public torch::nn::Module {
 public:
  // `name` is the logical name of the module, "layers.3.mlp". Null dispatcher: an AllToAllDispatcher. Throws UserError
  // where sizes do not divide.
  MoeMlp(const Config& config, const ModelParallel& parallel, const std::string& name,
         std::unique_ptr<TokenDispatcher> dispatcher = nullptr);

  // [batch, sequence, hidden], under sequence parallel this rank's part of the sequence; the result alike. Collective
  // over the groups, and so is its backward.
  at::Tensor forward(const at::Tensor& x);

  // The same in phases: route() ends the phase that computes x, then come phases(), and finish() begins the phase after
  // them. Between them travels one list of tensors, whose first is `residual`, untouched. `samples` as
  // Router::forward() takes them.
  Tensors route(const at::Tensor& residual, const at::Tensor& x, std::optional<std::int64_t> samples = {});
  // counts (exchange, nothing on the way back), dispatch (exchange), experts (compute), combine (exchange); named
  // "<prefix>.<phase>". They refer to this module. Costs are relative to `unit` multiplications per token, those of the
  // layer's attention; the two big exchanges are taken to last as long as attention and experts.
  std::vector<ModelPhase> phases(const std::string& prefix, double unit);
  // What forward() returns; the residual, inputs[0], is for the caller to add.
  at::Tensor finish(const Tensors& inputs);

  // `local_name` as in named_parameters().
  ParameterLayout layout_of(const std::string& local_name) const;

  Router& router() { return *router_; }

 private:
  using Exchange = std::unique_ptr<PendingTensors> (TokenDispatcher::*)(const Tensors&, std::any&);
  using ExchangeBack = std::unique_ptr<PendingTensors> (TokenDispatcher::*)(const Tensors&, const std::any&);

  bool divides_experts() const { return parallel_.expert_tensor.size() > 1; }
  // Of the list, those that are not the dispatcher's: the residual and the input of the shared expert, then its output.
  std::ptrdiff_t num_passing() const { return shared_expert_ ? 2 : 1; }
  Tensors dispatchers(const Tensors& list) const { return {list.begin() + num_passing(), list.end()}; }
  Tensors with_passing(const Tensors& list, const Tensors& dispatchers) const;

  ModelPhase counts_phase(const std::string& name);
  ModelPhase exchange_phase(const std::string& name, double cost, Exchange forth, ExchangeBack back);
  ModelPhase experts_phase(const std::string& name, double cost);
  at::Tensor entered(const at::Tensor& x) const;
  at::Tensor shared_output(const at::Tensor& x);
  Tensors compute_experts(const Tensors& list);

  double multiplications_;  // Of a token in the experts, shared one included.

  ModelParallel parallel_;
  std::shared_ptr<Router> router_;
  std::shared_ptr<Experts> experts_;
  std::shared_ptr<Expert> shared_expert_;  // Null: none.
  std::unique_ptr<TokenDispatcher> dispatcher_;
};

}  // namespace pretrain_gpt
