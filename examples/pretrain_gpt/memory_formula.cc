#include "examples/pretrain_gpt/memory_formula.h"

#include <algorithm>

namespace pretrain_gpt {
namespace {

void add_layer(const Config& config, std::int64_t layer, ElementCount& count) {
  const std::int64_t h = config.hidden_size, tensor = config.tensor_model_parallel_size;
  count.dense += 4 * h * h / tensor + 2 * h;
  if (!config.is_moe_layer(layer)) {
    count.dense += 3 * h * config.ffn_size() / tensor;
    return;
  }
  count.dense += config.num_experts * h + 3 * h * config.moe_shared_expert_intermediate_size / tensor;
  count.expert += config.num_experts / config.expert_model_parallel_size * 3 * h * config.moe_ffn_size() /
                  config.expert_tensor_size();
}

std::int64_t divided(std::int64_t elements, std::int64_t ranks) { return (elements + ranks - 1) / ranks; }

}  // namespace

ElementCount count_elements(const Config& config, const std::vector<Chunk>& chunks) {
  const std::int64_t vocabulary = config.vocab_size * config.hidden_size / config.tensor_model_parallel_size;
  const auto any = [&](bool Chunk::*has) {
    return std::any_of(chunks.begin(), chunks.end(), [has](const Chunk& chunk) { return chunk.*has; });
  };
  const bool embeds = any(&Chunk::has_embedding), ends = any(&Chunk::has_head);
  ElementCount count;
  count.dense += embeds ? vocabulary : 0;
  count.dense += ends ? config.hidden_size : 0;
  count.dense += ends && (config.untie_embeddings_and_output_weights || !embeds) ? vocabulary : 0;
  for (const Chunk& chunk : chunks) {
    for (std::int64_t layer = chunk.first_layer; layer < chunk.first_layer + chunk.num_layers; ++layer) {
      add_layer(config, layer, count);
    }
  }
  return count;
}

StateBytes formula_bytes(const Config& config, const ElementCount& elements, const ElementCount& copies) {
  const std::int64_t parameter = config.params_dtype == "float64" ? 8 : config.params_dtype == "float32" ? 4 : 2;
  const std::int64_t master = std::max<std::int64_t>(parameter, 4);
  const std::int64_t count = elements.dense + elements.expert;
  const bool is_divided = config.use_distributed_optimizer;
  const std::int64_t state = (is_divided || parameter < master ? 3 : 2) * master;
  const std::int64_t held =
      is_divided ? divided(elements.dense, copies.dense) + divided(elements.expert, copies.expert) : count;
  return {count * parameter, count * (config.accumulates_in_float32() ? 4 : parameter), held * state};
}

}  // namespace pretrain_gpt
