// tests/pretrain_gpt/parallel_case.h
//
// A small model on ranks that divide tensors, experts, data and stages, and the same model in one process with plain
// autograd.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/optimizer.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {

inline Config small_config() {
  Config config;
  config.num_layers = 4;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 24;
  config.seq_length = 6;
  config.vocab_size = 12;
  config.init_method_std = 0.2;
  config.params_dtype = "float64";
  config.micro_batch_size = 2;
  config.global_batch_size = 16;
  config.adam_eps = 1e-3;  // Steps are smooth in the gradients.
  config.moe_ffn_hidden_size = 8;
  config.moe_shared_expert_intermediate_size = 4;
  config.moe_layer_freq = 2;
  return config;
}

struct Sizes {
  const char* name;
  int world, tensor, pipeline;
  int experts = 0, expert = 1, expert_tensor = 0;  // expert_tensor 0: the default.
  bool sequence_parallel = false, untied = false, distributed_optimizer = false;
  double dropout = 0;
  const char* recompute = "none";
};

inline void PrintTo(const Sizes& sizes, std::ostream* stream) { *stream << sizes.name; }

inline Config config_of(const Sizes& sizes) {
  Config config = small_config();
  config.tensor_model_parallel_size = sizes.tensor;
  config.pipeline_model_parallel_size = sizes.pipeline;
  config.num_experts = sizes.experts;
  config.expert_model_parallel_size = sizes.expert;
  if (sizes.expert_tensor > 0) {
    config.expert_tensor_parallel_size = sizes.expert_tensor;
  }
  config.sequence_parallel = sizes.sequence_parallel;
  config.untie_embeddings_and_output_weights = sizes.untied;
  config.use_distributed_optimizer = sizes.distributed_optimizer;
  config.hidden_dropout = sizes.dropout;
  config.recompute_granularity = sizes.recompute;
  return config;
}

// Masks differ between micro-batches, so that a mean of means would be wrong. `index` counts over all data-parallel
// ranks.
inline MicroBatch batch_of(const Config& config, std::int64_t index) {
  const at::Tensor tokens =
      ((at::arange(config.micro_batch_size * config.seq_length) + 1) * (index + 3) % config.vocab_size)
          .view({config.micro_batch_size, config.seq_length});
  return {tokens, (tokens * 5 + 2) % config.vocab_size, tokens.remainder(index + 2).ne(0).to(at::kFloat)};
}

inline ReadMicroBatch reader(const TrainContext& context) {
  const int rank = context.parallel.layout().data_rank(context.parallel.rank());
  return read_by([&config = context.config, rank](int index) {
    return batch_of(config, index * config.data_parallel_size + rank);
  });
}

// The same model and global batch in one process.
struct Whole {
  std::unique_ptr<GptChunk> model;
  double loss = 0, norm = 0;
  std::map<std::string, at::Tensor> weights, gradients, stepped;  // Clipped to half of their norm for the step.
};

inline Whole train_whole(Config config) {
  config.use_distributed_optimizer = false;
  Whole whole;
  whole.model = std::make_unique<GptChunk>(config, whole_model(config));
  whole.model->set_step(1);
  at::Tensor sum = at::zeros({}, at::kDouble);
  double weight = 0;
  for (std::int64_t k = 0; k < config.global_batch_size / config.micro_batch_size; ++k) {
    const MicroBatch batch = batch_of(config, k);
    sum = sum + token_loss_sum(whole.model->forward(batch.tokens, k), batch.labels, batch.loss_mask);
    weight += token_loss_weight(batch.loss_mask);
  }
  (sum / weight).backward();
  whole.loss = sum.item<double>() / weight;
  for (const auto& parameter : whole.model->named_parameters()) {
    whole.weights[parameter.key()] = parameter.value().detach().clone();
    whole.gradients[parameter.key()] = parameter.value().grad().clone();
    whole.norm += parameter.value().grad().square().sum().item<double>();
  }
  whole.norm = std::sqrt(whole.norm);
  for (const auto& parameter : whole.model->named_parameters()) {
    parameter.value().mutable_grad().mul_(0.5 * whole.norm / (whole.norm + 1e-6));
  }
  make_optimizer(config, {whole.model.get()})->step();
  for (const auto& parameter : whole.model->named_parameters()) {
    whole.stepped[parameter.key()] = parameter.value().detach();
  }
  return whole;
}

// Where the elements of a rank's part lie in the whole weight: found by their values, which are drawn at random and do
// not repeat, so that this knows nothing of how layers divide.
inline at::Tensor places_in(const at::Tensor& whole, const at::Tensor& part) {
  if (whole.sizes() == part.sizes()) {
    return at::arange(whole.numel());
  }
  const auto [values, order] = whole.reshape({-1}).sort();
  return order.index_select(0, at::searchsorted(values, part.reshape({-1})));
}

inline at::Tensor pick(const at::Tensor& whole, const at::Tensor& places) { return whole.reshape({-1}).take(places); }

inline double distance(const at::Tensor& got, const at::Tensor& wanted) {
  return (got.reshape({-1}) - wanted).norm().item<double>() / std::max(wanted.norm().item<double>(), 1e-30);
}

}  // namespace pretrain_gpt
