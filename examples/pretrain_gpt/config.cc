#include "examples/pretrain_gpt/config.h"

#include <fmt/format.h>

#include <fstream>
#include <numeric>
#include <sstream>

#include "examples/pretrain_gpt/config_fields.h"
#include "examples/pretrain_gpt/config_reader.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/measured_layers.h"
#include "examples/pretrain_gpt/overrides.h"
#include "examples/pretrain_gpt/run_variables.h"

namespace pretrain_gpt {

std::int64_t Config::ffn_size() const { return ffn_hidden_size.value_or((hidden_size * 8 / 3 + 31) / 32 * 32); }

std::int64_t Config::moe_ffn_size() const { return moe_ffn_hidden_size.value_or(ffn_size()); }

std::int64_t Config::expert_tensor_size() const {
  return expert_tensor_parallel_size.value_or(tensor_model_parallel_size);
}

bool Config::accumulates_in_float32() const {
  return accumulate_allreduce_grads_in_fp32.value_or(params_dtype == "bfloat16");
}

std::int64_t Config::pipeline_size() const { return pipeline_model_parallel_size.value(); }

Config parse_config(const std::string& yaml, const std::string& name, const Overrides& overrides,
                    const GetVariable& get) {
  ConfigReader reader;
  reader.read_yaml(yaml, name);
  for (const std::string& assignment : overrides) {
    read_override(reader, assignment);
  }
  if (get) {
    read_run_variables(reader, get);
  }
  Config config = reader.finish();
  if (get) {
    leave_checkpoints_alone(config, get);
  }
  if (config.balance == "measured") {
    config.layer_times = read_layer_times(config.cost_file, config.num_layers);
  }
  return config;
}

Config load_config(const std::filesystem::path& file, const Overrides& overrides, const GetVariable& get) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (!std::filesystem::is_regular_file(file) || !(text << stream.rdbuf())) {
    throw UserError(file.string(), "--config must name a readable YAML file; for example configs/gpt_tiny.yaml");
  }
  return parse_config(text.str(), file.string(), overrides, get);
}

namespace {

// Processes of one pipeline stage with one copy of its weights: dense ones on tensor ranks, experts on theirs.
std::int64_t ranks_of_stage(const Config& config) {
  return std::lcm(config.tensor_model_parallel_size, config.expert_tensor_size() * config.expert_model_parallel_size);
}

std::int64_t next_multiple(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

[[noreturn]] void refuse_world(const std::string& sizes, const std::string& product, std::int64_t unit,
                               std::int64_t world_size, std::int64_t example) {
  throw UserError("WORLD_SIZE", fmt::format("the number of processes must be a multiple of {} = {} = {}, got {}; for "
                                            "example start {} processes",
                                            sizes, product, unit, world_size, example));
}

void check_expert_ranks(const Config& config, std::int64_t world_size) {
  const std::int64_t stage = config.tensor_model_parallel_size * config.data_parallel_size;
  const std::int64_t tensor = config.expert_tensor_size(), expert = config.expert_model_parallel_size;
  if (stage % (tensor * expert) != 0) {
    throw UserError("expert_model_parallel_size",
                    fmt::format("times expert_tensor_parallel_size must divide the {} processes of a pipeline stage, "
                                "got {} x {} = {}; for example expert_model_parallel_size: {}, or start {} processes",
                                stage, expert, tensor, expert * tensor, std::gcd(expert, stage / tensor),
                                next_multiple(world_size, config.pipeline_size() * ranks_of_stage(config))));
  }
}

void check_batch(const Config& config) {
  const std::int64_t unit = config.micro_batch_size * config.data_parallel_size;
  if (config.global_batch_size % unit != 0) {
    throw UserError("global_batch_size",
                    fmt::format("must be a multiple of micro_batch_size x data-parallel size = {} x {} = {}, got {}; "
                                "for example {}",
                                config.micro_batch_size, config.data_parallel_size, unit, config.global_batch_size,
                                next_multiple(config.global_batch_size, unit)));
  }
}

}  // namespace

void resolve(Config& config, int world_size) {
  const std::int64_t tensor = config.tensor_model_parallel_size, stage = ranks_of_stage(config);
  if (!config.pipeline_model_parallel_size && world_size % stage != 0) {
    refuse_world(
        "the processes of a pipeline stage, the least common multiple of tensor and expert ranks",
        fmt::format("lcm({}, {} x {})", tensor, config.expert_tensor_size(), config.expert_model_parallel_size), stage,
        world_size, next_multiple(world_size, stage));
  }
  const std::int64_t pipeline = config.pipeline_model_parallel_size.value_or(world_size / stage);
  if (world_size % (tensor * pipeline) != 0) {
    refuse_world("tensor_model_parallel_size x pipeline_model_parallel_size", fmt::format("{} x {}", tensor, pipeline),
                 tensor * pipeline, world_size, next_multiple(world_size, pipeline * stage));
  }
  config.pipeline_model_parallel_size = pipeline;
  config.data_parallel_size = world_size / (tensor * pipeline);
  check_expert_ranks(config, world_size);
  check_batch(config);
}

std::vector<std::pair<std::string, std::string>> key_values(const Config& config) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const ConfigField& field : config_fields()) {
    pairs.emplace_back(field.key, field.print(config));
  }
  return pairs;
}

}  // namespace pretrain_gpt
