// examples/pretrain_gpt/model/transformer_layer.h
//
// A pre-norm transformer layer: x + attention(norm(x)), then x + mlp(norm(x)), what is added thinned by hidden_dropout.
// RMS norms, causal attention with rotary embeddings, SwiGLU, no biases; on MoE layers (Config::is_moe_layer) a mixture
// of experts instead of the MLP.
//
// It is computed in phases: "3.attention", then "3.mlp", or those of the mixture of experts.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/attention.h"
#include "examples/pretrain_gpt/model/dropout.h"
#include "examples/pretrain_gpt/model/mlp.h"
#include "examples/pretrain_gpt/model/phase.h"
#include "examples/pretrain_gpt/model/rms_norm.h"
#include "examples/pretrain_gpt/model/rotary.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

class MoeMlp;

// How a compute phase begins: from what the phase before hands over the hidden states.
using HiddenOf = std::function<at::Tensor(const Tensors& inputs, std::int64_t micro_batch)>;

class TransformerLayer : public torch::nn::Module {
 public:
  TransformerLayer(const Config& config, const ModelParallel& parallel, std::int64_t index,
                   std::shared_ptr<const Rotary> rotary);

  // Of the passes from now on; `samples` of the step count.
  void set_step(std::int64_t step, std::int64_t samples);

  // Appends this layer's phases, the first of which begins with `begin`; gives how the phase after them begins. The
  // phases refer to this layer. Hidden states are [batch, sequence, hidden], under sequence parallel this rank's part
  // of the sequence.
  HiddenOf add_phases(std::vector<ModelPhase>& phases, HiddenOf begin);

  // A list of hidden states alone, as phases declare it.
  static std::vector<TensorForm> hidden_alone(const Config& config);

  std::int64_t index() const { return index_; }
  bool is_moe() const { return experts_ != nullptr; }
  MoeMlp* experts() const { return experts_.get(); }  // Null on a dense layer.

  // `local_name` as in named_parameters().
  ParameterLayout layout_of(const std::string& local_name) const;

  // What a token costs in the attention of a layer, in multiplications: the unit of the phases' costs.
  static double attention_cost(const Config& config);

 private:
  ForwardPass pass(std::int64_t micro_batch) const;
  at::Tensor add_attention(const at::Tensor& x, const ForwardPass& pass);
  at::Tensor add_mlp(const at::Tensor& x, const ForwardPass& pass);
  at::Tensor add_experts(const Tensors& inputs, const ForwardPass& pass);
  at::Tensor thinned(const at::Tensor& x, const ForwardPass& pass, const char* position) const;
  ModelPhase attention_phase(HiddenOf begin);
  ModelPhase mlp_phase();

  const Config config_;
  ModelParallel parallel_;
  std::int64_t index_;
  std::int64_t step_ = 0, samples_;  // Initially all that a step has.
  Dropout dropout_;
  std::shared_ptr<RmsNorm> attention_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<RmsNorm> mlp_norm_;
  std::shared_ptr<Mlp> mlp_;  // One of these two is null.
  std::shared_ptr<MoeMlp> experts_;
};

}  // namespace pretrain_gpt
