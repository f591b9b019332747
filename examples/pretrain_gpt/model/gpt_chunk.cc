#include "examples/pretrain_gpt/model/gpt_chunk.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/model/run_phases.h"
#include "examples/pretrain_gpt/model/vocabulary.h"

namespace pretrain_gpt {

std::vector<std::int64_t> boundary_sizes(const Config& config, const ModelParallel& parallel) {
  const std::int64_t parts = parallel.sequence_parallel ? parallel.tensor.size() : 1;
  return {config.micro_batch_size, part_size(config.seq_length, parts), config.hidden_size};
}

GptChunk::GptChunk(const Config& config, const ModelParallel& parallel, const Chunk& chunk, at::Tensor tied)
    : config_(config), parallel_(parallel), chunk_(chunk), is_tied_(!config.untie_embeddings_and_output_weights) {
  if (chunk.has_embedding || (chunk.has_head && is_tied_)) {
    build_embedding(std::move(tied));
  }
  const auto rotary = std::make_shared<const Rotary>(config);
  const auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
  for (std::int64_t index = chunk.first_layer; index < chunk.first_layer + chunk.num_layers; ++index) {
    const auto layer = std::make_shared<TransformerLayer>(config, parallel, index, rotary);
    layers_.push_back(layers->register_module(std::to_string(index), layer));
  }
  if (chunk.has_head) {
    build_head();
  }
}

GptChunk::GptChunk(const Config& config, const Chunk& chunk, at::Tensor tied)
    : GptChunk(config, ModelParallel{}, chunk, std::move(tied)) {}

void GptChunk::build_embedding(at::Tensor tied) {
  if (!tied.defined()) {
    tied = vocabulary_weight(config_, parallel_, "embedding.weight");
  }
  embedding_ = register_module("embedding", std::make_shared<Weight>(std::move(tied)));
}

void GptChunk::build_head() {
  final_norm_ = register_module("final_norm", std::make_shared<RmsNorm>(config_));
  if (!is_tied_) {
    output_ =
        register_module("output", std::make_shared<Weight>(vocabulary_weight(config_, parallel_, "output.weight")));
  }
}

const at::Tensor& GptChunk::head_weight() const { return is_tied_ ? embedding_->weight : output_->weight; }

void GptChunk::set_step(std::int64_t step, std::optional<std::int64_t> samples) {
  for (const auto& layer : layers_) {
    layer->set_step(step, samples.value_or(config_.global_batch_size));
  }
}

at::Tensor GptChunk::forward(const at::Tensor& input, std::int64_t micro_batch) {
  std::vector<ModelPhase> all = phases();
  if (exchange_watch_) {
    pretrain_gpt::watch_exchanges(all, exchange_watch_);
  }
  return run_phases(all, {input}, micro_batch).at(0);
}

std::vector<ModelPhase> GptChunk::phases() {
  std::vector<ModelPhase> phases;
  if (chunk_.has_embedding) {
    phases.push_back(embedding_phase());
  }
  HiddenOf begin = [](const Tensors& inputs, std::int64_t) { return inputs.at(0); };
  // Behind a mixture of experts a phase begins with the list of its dispatcher, whose form nobody else knows.
  std::optional<std::vector<TensorForm>> begins_with = TransformerLayer::hidden_alone(config_);
  for (const auto& layer : layers_) {
    const std::size_t first = phases.size();
    begin = layer->add_phases(phases, std::move(begin));
    phases[first].takes = begins_with;
    begins_with = layer->is_moe() ? std::nullopt : std::optional(TransformerLayer::hidden_alone(config_));
  }
  if (chunk_.has_head || (!layers_.empty() && layers_.back()->is_moe())) {
    phases.push_back(last_phase(std::move(begin)));
    phases.back().takes = begins_with;
  }
  return phases;
}

ModelPhase GptChunk::embedding_phase() {
  ModelPhase phase;
  phase.name = "embedding";
  phase.forward = phase.backward_weight =
      static_cast<double>(config_.hidden_size) / TransformerLayer::attention_cost(config_);
  phase.backward_input = 0;  // Tokens carry no gradient.
  phase.takes = std::vector{TensorForm{at::kLong, std::vector<std::optional<std::int64_t>>(2)}};
  phase.gives = TransformerLayer::hidden_alone(config_);
  phase.compute = [this](const Tensors& inputs, PhaseState&) -> Tensors {
    return {embed(inputs.at(0), embedding_->weight, parallel_)};
  };
  return phase;
}

ModelPhase GptChunk::last_phase(HiddenOf begin) {
  const std::int64_t products = chunk_.has_head ? config_.vocab_size * config_.hidden_size : 0;
  ModelPhase phase;
  phase.name = chunk_.has_head ? "head" : "output";
  phase.forward = phase.backward_input = phase.backward_weight =
      static_cast<double>(products) / TransformerLayer::attention_cost(config_);
  if (!chunk_.has_head) {
    phase.gives = TransformerLayer::hidden_alone(config_);
  }
  phase.compute = [this, begin = std::move(begin)](const Tensors& inputs, PhaseState& state) -> Tensors {
    const at::Tensor hidden = begin(inputs, state.micro_batch);
    return {chunk_.has_head ? logits_of(final_norm_->forward(hidden), head_weight(), parallel_) : hidden};
  };
  return phase;
}

ParameterLayout GptChunk::layout_of(const std::string& local_name) const {
  for (const auto& layer : layers_) {
    const std::string prefix = fmt::format("layers.{}.", layer->index());
    if (local_name.starts_with(prefix)) {
      return layer->layout_of(local_name.substr(prefix.size()));
    }
  }
  const bool is_divided = parallel_.tensor.size() > 1, is_norm = local_name == "final_norm.weight";
  return {.is_tensor_shard = is_divided && !is_norm,
          .is_sequence_partial = is_divided && is_norm && parallel_.sequence_parallel};
}

at::Tensor GptChunk::embedding_weight() const { return embedding_ ? embedding_->weight : at::Tensor(); }

}  // namespace pretrain_gpt
