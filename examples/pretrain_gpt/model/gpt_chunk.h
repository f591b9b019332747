// examples/pretrain_gpt/model/gpt_chunk.h
//
// A contiguous slice of a GPT: what one stage of a pipeline computes.
//
// Parameters are named by their place in the whole model, whatever the division: `embedding.weight`,
// `layers.<index>.…`, `final_norm.weight`, `output.weight`. With a tied head, the chunk that holds the head has
// `embedding.weight` instead of `output.weight`: two chunks then hold one logical parameter, and their gradients add
// up.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/transformer_layer.h"

namespace pretrain_gpt {

class GptChunk : public torch::nn::Module {
 public:
  // `tied`: the embedding weight of another chunk in this process, to be used by this one instead of a copy; only where
  // the head is tied.
  GptChunk(const Config& config, const Chunk& chunk, at::Tensor tied = {});

  // With the embedding the input is tokens [batch, sequence] int64, else hidden states [batch, sequence, hidden]. With
  // the head the output is logits [batch, sequence, vocabulary], else hidden states.
  at::Tensor forward(const at::Tensor& input);

  const Chunk& chunk() const { return chunk_; }

  // Undefined where this chunk holds neither the embedding nor a tied head.
  at::Tensor embedding_weight() const;

 private:
  void build_embedding(const Config& config, at::Tensor tied);
  void build_head(const Config& config);
  const at::Tensor& head_weight() const;

  Chunk chunk_;
  bool is_tied_;
  std::shared_ptr<Weight> embedding_;
  std::vector<std::shared_ptr<TransformerLayer>> layers_;
  std::shared_ptr<RmsNorm> final_norm_;
  std::shared_ptr<Weight> output_;
};

}  // namespace pretrain_gpt
