#include "examples/pretrain_gpt/layer_division.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

// Multiplications per token. Of a layer with experts: those that a token meets.
std::int64_t layer_cost(const Config& config, std::int64_t layer) {
  const std::int64_t h = config.hidden_size;
  const std::int64_t attention = 4 * h * h + config.seq_length * h;
  if (!config.is_moe_layer(layer)) {
    return attention + 3 * h * config.ffn_size();
  }
  const std::int64_t width =
      config.moe_router_topk * config.moe_ffn_size() + config.moe_shared_expert_intermediate_size;
  return attention + h * config.num_experts + 3 * h * width;
}

// Stages hold contiguous layers, whose kinds take turns: on the whole they cost alike.
std::int64_t mean_layer_cost(const Config& config) {
  std::int64_t sum = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    sum += layer_cost(config, layer);
  }
  return sum / config.num_layers;
}

std::vector<std::int64_t> counts_by_cost(const Config& config, int num_stages) {
  std::vector<std::int64_t> counts(num_stages, 1);
  const std::int64_t of_layer = mean_layer_cost(config);
  std::vector<std::int64_t> cost(num_stages, of_layer);
  cost.front() += config.hidden_size;
  cost.back() += config.vocab_size * config.hidden_size;
  for (std::int64_t layer = num_stages; layer < config.num_layers; ++layer) {
    int least = 0;
    for (int stage = 1; stage < num_stages; ++stage) {
      if (cost[stage] <= cost[least]) {
        least = stage;
      }
    }
    ++counts[least];
    cost[least] += of_layer;
  }
  return counts;
}

void check_counts(const Config& config, int num_stages, const std::vector<std::int64_t>& counts) {
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (static_cast<int>(counts.size()) == num_stages && sum == config.num_layers) {
    return;
  }
  std::string works = fmt::format("raise num_layers to at least {}", num_stages);
  if (config.num_layers >= num_stages) {
    works = fmt::format("for example [{}]", fmt::join(counts_by_cost(config, num_stages), ", "));
  }
  throw UserError("pipeline_layer_counts",
                  fmt::format("must list {} stages whose layers add up to num_layers = {}, got [{}]: {} layers over {} "
                              "stages; {}",
                              num_stages, config.num_layers, fmt::join(counts, ", "), sum, counts.size(), works));
}

std::vector<std::int64_t> layer_counts(const Config& config, int num_stages, StagePlaces places) {
  if (!config.pipeline_layer_counts.empty()) {
    check_counts(config, num_stages, config.pipeline_layer_counts);
    return config.pipeline_layer_counts;
  }
  if (config.num_layers < num_stages) {
    throw UserError(
        "num_layers",
        fmt::format("must be at least the number of stages = {}, got {}: {} stages would hold no layer; for "
                    "example {}",
                    num_stages, config.num_layers, num_stages - config.num_layers, num_stages));
  }
  return config.layer_times ? balance(*config.layer_times, num_stages, places) : counts_by_cost(config, num_stages);
}

}  // namespace

std::vector<Chunk> divide_layers(const Config& config, int num_stages, StagePlaces places) {
  std::vector<Chunk> chunks;
  std::int64_t first = 0;
  for (const std::int64_t count : layer_counts(config, num_stages, places)) {
    const int stage = static_cast<int>(chunks.size());
    chunks.push_back({stage, num_stages, first, count, stage == 0, stage == num_stages - 1});
    first += count;
  }
  return chunks;
}

Chunk whole_model(const Config& config) { return {0, 1, 0, config.num_layers, true, true}; }

}  // namespace pretrain_gpt
