// examples/pretrain_gpt/model/gpt_chunk.h
//
// A contiguous slice of a GPT: what one stage of a pipeline computes, on one of the ranks that divide it.
//
// Parameters are named by their place in the whole model, whatever the division: `embedding.weight`,
// `layers.<index>.…`, `final_norm.weight`, `output.weight`. With a tied head, the chunk that holds the head has
// `embedding.weight` instead of `output.weight`: two chunks then hold one logical parameter, and their gradients add
// up. The parts of a parameter that is divided over tensor-parallel ranks share its name.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/exchange_watch.h"
#include "examples/pretrain_gpt/model/phase.h"
#include "examples/pretrain_gpt/model/rms_norm.h"
#include "examples/pretrain_gpt/model/transformer_layer.h"
#include "examples/pretrain_gpt/model/weight.h"
#include "examples/pretrain_gpt/parallel/model_parallel.h"

namespace pretrain_gpt {

// Of the hidden states between two chunks: [micro_batch_size, seq_length, hidden], under sequence parallel this rank's
// part of the sequence.
std::vector<std::int64_t> boundary_sizes(const Config& config, const ModelParallel& parallel);

class GptChunk : public torch::nn::Module {
 public:
  // `tied`: the embedding weight of another chunk in this process, to be used by this one instead of a copy; only where
  // the head is tied. Throws UserError where the ranks do not divide heads, widths or the vocabulary.
  GptChunk(const Config& config, const ModelParallel& parallel, const Chunk& chunk, at::Tensor tied = {});
  // Of a model that is not divided over ranks.
  GptChunk(const Config& config, const Chunk& chunk, at::Tensor tied = {});

  // The step that passes belong to from now on: dropout depends on it and on the micro-batch; train(false) turns it
  // off. `samples` of the step count, its first ones (last_batch: pad); by default all.
  void set_step(std::int64_t step, std::optional<std::int64_t> samples = {});

  // With the embedding the input is tokens [batch, sequence] int64, else hidden states as in boundary_sizes(). With the
  // head the output is logits [batch, sequence, this rank's part of the vocabulary], else hidden states. Collective
  // over the model-parallel groups, and so is its backward. Activations are kept as recompute_granularity says.
  at::Tensor forward(const at::Tensor& input, std::int64_t micro_batch = 0);

  // What forward() does, for one tensor in and one out: "embedding", the phases of the layers, "head", or "output"
  // where the chunk ends with a mixture of experts. They refer to this chunk. Costs are relative to the attention of a
  // layer; those of the backward do not count what is computed again.
  std::vector<ModelPhase> phases();

  // Told of the exchanges that forward() and its backward wait for.
  void watch_exchanges(ExchangeWatch watch) { exchange_watch_ = std::move(watch); }

  const Chunk& chunk() const { return chunk_; }

  // `local_name` as in named_parameters().
  ParameterLayout layout_of(const std::string& local_name) const;

  // Undefined where this chunk holds neither the embedding nor a tied head.
  at::Tensor embedding_weight() const;

  const std::vector<std::shared_ptr<TransformerLayer>>& layers() const { return layers_; }

 private:
  void build_embedding(at::Tensor tied);
  void build_head();
  const at::Tensor& head_weight() const;
  ModelPhase embedding_phase();
  ModelPhase last_phase(HiddenOf begin);

  const Config config_;
  ModelParallel parallel_;
  Chunk chunk_;
  bool is_tied_;
  std::shared_ptr<Weight> embedding_;
  std::vector<std::shared_ptr<TransformerLayer>> layers_;
  std::shared_ptr<RmsNorm> final_norm_;
  std::shared_ptr<Weight> output_;
  ExchangeWatch exchange_watch_;
};

}  // namespace pretrain_gpt
