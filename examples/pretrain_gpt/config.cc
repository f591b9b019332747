#include "examples/pretrain_gpt/config.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "examples/pretrain_gpt/config_fields.h"
#include "examples/pretrain_gpt/config_reader.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/overrides.h"

namespace pretrain_gpt {

std::int64_t Config::ffn_size() const { return ffn_hidden_size.value_or((hidden_size * 8 / 3 + 31) / 32 * 32); }

std::int64_t Config::pipeline_size() const { return pipeline_model_parallel_size.value(); }

Config parse_config(const std::string& yaml, const std::string& name, const Overrides& overrides) {
  ConfigReader reader;
  reader.read_yaml(yaml, name);
  for (const std::string& assignment : overrides) {
    read_override(reader, assignment);
  }
  return reader.finish();
}

Config load_config(const std::filesystem::path& file, const Overrides& overrides) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (!std::filesystem::is_regular_file(file) || !(text << stream.rdbuf())) {
    throw UserError(file.string(), "--config must name a readable YAML file; for example configs/gpt_tiny.yaml");
  }
  return parse_config(text.str(), file.string(), overrides);
}

void resolve(Config& config, int world_size) {
  const std::int64_t pipeline = config.pipeline_model_parallel_size.value_or(world_size);
  if (pipeline != world_size) {
    throw UserError(
        "pipeline_model_parallel_size",
        fmt::format(
            "must equal the number of processes (WORLD_SIZE) = {}, got {}; for example start {} processes, or set "
            "pipeline_model_parallel_size: {}",
            world_size, pipeline, pipeline, world_size));
  }
  config.pipeline_model_parallel_size = pipeline;
}

std::vector<std::pair<std::string, std::string>> key_values(const Config& config) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const ConfigField& field : config_fields()) {
    pairs.emplace_back(field.key, field.print(config));
  }
  return pairs;
}

}  // namespace pretrain_gpt
