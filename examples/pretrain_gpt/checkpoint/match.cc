#include "examples/pretrain_gpt/checkpoint/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }

// "builtin_1f1b with tensor 1, pipeline 2, data 1, expert 1"
std::string saved_under(const Manifest& manifest) {
  const auto value = [&](const std::string& key) {
    const auto found = manifest.layout.find(key);
    return found == manifest.layout.end() ? std::string("?") : found->second;
  };
  return fmt::format("{} with tensor {}, pipeline {}, data {}, expert {}", value("pipeline_schedule"),
                     value("tensor_model_parallel_size"), value("pipeline_model_parallel_size"),
                     value("data_parallel_size"), value("expert_model_parallel_size"));
}

std::string form(const std::string& dtype, const Shape& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

void match_settings(const Settings& saved, const Settings& wanted, const std::string& otherwise,
                    const std::string& origin) {
  for (const auto& [key, value] : wanted) {
    const auto found = saved.find(key);
    if (found == saved.end() || found->second != value) {
      const std::string given = found == saved.end() ? "nothing" : found->second;
      throw CheckpointError(origin, fmt::format("{} must be what this run has = {}, got {}; for example {}", key, value,
                                                given, fmt::format(fmt::runtime(otherwise), key, given)));
    }
  }
}

}  // namespace

Settings model_settings(const Config& config) {
  return {{"num_layers", text_of(config.num_layers)},
          {"hidden_size", text_of(config.hidden_size)},
          {"ffn_hidden_size", text_of(config.ffn_size())},
          {"num_attention_heads", text_of(config.num_attention_heads)},
          {"vocab_size", text_of(config.vocab_size)},
          {"untie_embeddings_and_output_weights", text_of(config.untie_embeddings_and_output_weights)},
          {"params_dtype", config.params_dtype},
          {"num_experts", text_of(config.num_experts)},
          {"moe_layer_freq", text_of(config.moe_layer_freq)},
          {"moe_ffn_hidden_size", text_of(config.moe_ffn_size())},
          {"moe_shared_expert_intermediate_size", text_of(config.moe_shared_expert_intermediate_size)},
          {"moe_router_topk", text_of(config.moe_router_topk)},
          {"moe_router_enable_expert_bias", text_of(config.moe_router_enable_expert_bias)}};
}

Settings data_settings(const Config& config, std::int64_t num_tokens) {
  return {{"tokens in data_path", text_of(num_tokens)},
          {"seq_length", text_of(config.seq_length)},
          {"split", config.split}};
}

Settings layout_settings(const Config& resolved) {
  return {{"pipeline_schedule", resolved.pipeline_schedule},
          {"tensor_model_parallel_size", text_of(resolved.tensor_model_parallel_size)},
          {"pipeline_model_parallel_size", text_of(resolved.pipeline_size())},
          {"data_parallel_size", text_of(resolved.data_parallel_size)},
          {"expert_model_parallel_size", text_of(resolved.expert_model_parallel_size)},
          {"expert_tensor_parallel_size", text_of(resolved.expert_tensor_size())},
          {"use_distributed_optimizer", text_of(resolved.use_distributed_optimizer)}};
}

void match_model(const Manifest& manifest, const Settings& model, const std::string& origin) {
  match_settings(manifest.model, model, "{}: {}", origin);
}

void match_data(const Manifest& manifest, const Settings& data, std::int64_t seed, const std::string& origin) {
  match_settings(manifest.data, data, "finetune: true, which begins with the data anew", origin);
  match_settings({{"seed", text_of(manifest.seed)}}, {{"seed", text_of(seed)}},
                 "{}: {}, or finetune: true, which begins with the data anew", origin);
}

void match_tensors(const Manifest& manifest, const std::vector<HeldBox>& held, const std::string& origin) {
  for (const HeldBox& box : held) {
    const auto found = manifest.tensors.find(box.name);
    if (found == manifest.tensors.end()) {
      throw CheckpointError(origin, fmt::format("{} must be there as {}, got no such tensor in a checkpoint of {}",
                                                box.name, form(box.dtype, box.shape), saved_under(manifest)));
    }
    const ManifestTensor& tensor = found->second;
    if (tensor.dtype != box.dtype || tensor.shape != box.shape) {
      throw CheckpointError(
          origin, fmt::format("{} must be {}, got {} in a checkpoint of {}", box.name, form(box.dtype, box.shape),
                              form(tensor.dtype, tensor.shape), saved_under(manifest)));
    }
  }
}

void match_names(const Manifest& manifest, const std::vector<std::string>& names, const std::string& origin) {
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!std::binary_search(names.begin(), names.end(), name)) {
      throw CheckpointError(origin, fmt::format("must have no tensor but those of this model, got {} as {} in a "
                                                "checkpoint of {}",
                                                name, form(tensor.dtype, tensor.shape), saved_under(manifest)));
    }
  }
}

}  // namespace pretrain_gpt
