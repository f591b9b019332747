#include "examples/pretrain_gpt/model/gpt_chunk.h"

#include <ATen/ATen.h>

#include <string>

#include "examples/pretrain_gpt/model/initial_weights.h"

namespace pretrain_gpt {

GptChunk::GptChunk(const Config& config, const Chunk& chunk, at::Tensor tied)
    : chunk_(chunk), is_tied_(!config.untie_embeddings_and_output_weights) {
  if (chunk.has_embedding || (chunk.has_head && is_tied_)) {
    build_embedding(config, std::move(tied));
  }
  const auto rotary = std::make_shared<const Rotary>(config);
  const auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
  for (std::int64_t index = chunk.first_layer; index < chunk.first_layer + chunk.num_layers; ++index) {
    const auto layer = std::make_shared<TransformerLayer>(config, index, rotary);
    layers_.push_back(layers->register_module(std::to_string(index), layer));
  }
  if (chunk.has_head) {
    build_head(config);
  }
}

void GptChunk::build_embedding(const Config& config, at::Tensor tied) {
  if (!tied.defined()) {
    tied = normal_weight(config, "embedding.weight", {config.vocab_size, config.hidden_size}, config.init_method_std);
  }
  embedding_ = register_module("embedding", std::make_shared<Weight>(std::move(tied)));
}

void GptChunk::build_head(const Config& config) {
  final_norm_ = register_module("final_norm", std::make_shared<RmsNorm>(config));
  if (!is_tied_) {
    output_ = register_module(
        "output", std::make_shared<Weight>(normal_weight(
                      config, "output.weight", {config.vocab_size, config.hidden_size}, config.init_method_std)));
  }
}

const at::Tensor& GptChunk::head_weight() const { return is_tied_ ? embedding_->weight : output_->weight; }

at::Tensor GptChunk::forward(const at::Tensor& input) {
  at::Tensor hidden = chunk_.has_embedding ? at::embedding(embedding_->weight, input) : input;
  for (const auto& layer : layers_) {
    hidden = layer->forward(hidden);
  }
  return chunk_.has_head ? at::linear(final_norm_->forward(hidden), head_weight()) : hidden;
}

at::Tensor GptChunk::embedding_weight() const { return embedding_ ? embedding_->weight : at::Tensor(); }

}  // namespace pretrain_gpt
