// examples/pretrain_gpt/model/moe/router.h
//
// Which experts take a token, and with what weight.
//
// Scores are the softmax over all experts of x times `weight`. A token goes to the topk experts with the largest
// scores, and their scores, divided by their sum, are the weights: what Mixtral computes as the softmax over the chosen
// logits, and DeepSeek-V3 as normalized gates. With topk = 1 that would be 1 without a gradient: the weight is then the
// score itself, as in the Switch Transformer. All of it in float32, in float64 for float64 models.
//
// Two ways to spread the load, both, or none:
//   auxiliary loss  load_balancing_loss() times moe_aux_loss_coeff times the scale, per micro-batch, over the whole
//                   sequence; only its gradient is felt, it is in no output. Of a micro-batch whose samples count in
//                   part these alone, and their share of the scale.
//   expert bias     `expert_bias` is added to the scores for the choice alone (Wang et al. 2024, "Auxiliary-loss-free
//                   load balancing"); update_expert_bias() moves it.
// A micro-batch is counted when its backward gets here: once if its forward runs twice, and never in an evaluation.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/moe/routing.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class Router : public torch::nn::Module {
 public:
  Router(const Config& config, const ModelParallel& parallel, const std::string& name);

  // x: [batch, sequence, hidden], under sequence parallel this rank's part of the sequence, and then collective over
  // the tensor ranks. The result's first dimensions are x's. The first `samples` of the batch count, by default all;
  // the others are routed alike, but not balanced.
  Routing forward(const at::Tensor& x, std::optional<std::int64_t> samples = {});

  // What a micro-batch's auxiliary loss counts beside a loss that is a mean over the step: initially 1 over the
  // micro-batches of the step on all data-parallel ranks. Of forwards to come.
  void set_auxiliary_loss_scale(double scale) { loss_scale_ = scale; }

  // Since the last update_expert_bias() or reset_counters().
  struct Counters {
    at::Tensor load;  // int64 [num_experts]: choices of whole sequences, the same on all tensor ranks.
    // Sum of the auxiliary losses times coefficient and scale. The step's is the sum over data-parallel ranks and,
    // under sequence parallel, tensor ranks.
    at::Tensor auxiliary_loss;
  };
  const Counters& counters() const { return *counters_; }
  void reset_counters();

 private:
  friend void update_expert_bias(const std::vector<Router*>& routers, const std::vector<LayerGroup>& groups);

  // `weights` as they are; scores and experts are of `share` of the micro-batch.
  at::Tensor balanced(const at::Tensor& weights, const at::Tensor& scores, const at::Tensor& experts, double share);
  void count_in_backward(const at::Tensor& weights, const Counters& micro_batch) const;

  LayerGroup sequence_;  // The ranks that hold the other parts of a sequence.
  std::int64_t num_experts_, topk_;
  double loss_coefficient_;  // 0: no auxiliary loss.
  double loss_scale_, bias_rate_;
  at::Tensor weight_;                   // [num_experts, hidden]
  at::Tensor expert_bias_;              // [num_experts]; undefined: none.
  std::shared_ptr<Counters> counters_;  // Shared with graphs.
};

// After a step, deferred weight gradients included: raises the bias of each expert that took less than the mean over
// the experts by moe_router_bias_update_rate, lowers that of each that took more, and starts the counters anew. Loads
// are summed over one group after the other: together all ranks with other data and all mirrors. Collective, with the
// same layers in the same order; the result is equal on all, since sums of counts are exact.
void update_expert_bias(const std::vector<Router*>& routers, const std::vector<LayerGroup>& groups);

}  // namespace pretrain_gpt
