// What the trainer reads: its launcher's variables, its configuration, measured layers, indexed data.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config_reader.h"
#include "examples/pretrain_gpt/data/indexed_dataset.h"
#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/host_list.h"
#include "examples/pretrain_gpt/measured_layers.h"
#include "examples/pretrain_gpt/overrides.h"
#include "plugin/schedule/error.h"
#include "tests/fuzz/targets.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe::fuzz {

using pretrain_gpt::UserError;

void read_host_list(std::string_view bytes) {
  try {
    check(!pretrain_gpt::first_host(bytes).empty(), "a list names a host");
  } catch (const UserError&) {
  }
}

void read_environment(std::string_view bytes) {
  std::map<std::string, std::string> variables;
  while (!bytes.empty()) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    const std::size_t equals = std::min(line.find('='), line.size());
    variables[std::string(line.substr(0, equals))] = line.substr(std::min(equals + 1, line.size()));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
  }
  try {
    const pretrain_gpt::Environment environment =
        pretrain_gpt::read_environment([&](const std::string& name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        });
    check(environment.rank >= 0 && environment.rank < environment.world_size, "a rank is below the world's size");
    check(environment.master_port >= 0 && environment.master_port <= 65535, "a port is one");
  } catch (const UserError&) {
  }
}

void read_config(std::string_view bytes) {
  try {
    pretrain_gpt::ConfigReader reader;
    reader.read_yaml(std::string(bytes), "fuzz.yaml");
    check(reader.finish().num_layers >= 1, "a model has a layer");
  } catch (const UserError&) {
  }
}

void read_override(std::string_view bytes) {
  try {
    pretrain_gpt::ConfigReader reader;
    pretrain_gpt::read_override(reader, std::string(bytes));
    check(reader.finish().num_layers >= 1, "a model has a layer");
  } catch (const UserError&) {
  }
}

void read_layer_times(std::string_view bytes) {
  const TemporaryFolder folder;
  const std::string file = folder.write("cost.json", std::string(bytes));
  for (const int layers : {1, 2, 8}) {
    try {
      check(pretrain_gpt::read_layer_times(file, layers).layers.size() == static_cast<std::size_t>(layers),
            "a time per layer");
    } catch (const UserError&) {
    }
  }
}

namespace {

void read_all(const pretrain_gpt::IndexedDataset& dataset) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::min<std::int64_t>(dataset.num_tokens(), 64)));
  dataset.read(0, tokens);
  dataset.read(dataset.num_tokens() - static_cast<std::int64_t>(tokens.size()), tokens);
}

}  // namespace

void read_indexed_dataset(std::string_view bytes) {
  const TemporaryFolder folder;
  const std::size_t tail =
      bytes.empty() ? 0 : std::min<std::size_t>(static_cast<unsigned char>(bytes.front()), bytes.size() - 1);
  bytes.remove_prefix(std::min<std::size_t>(1, bytes.size()));
  folder.write("data.idx", std::string(bytes.substr(0, bytes.size() - tail)));
  folder.write("data.bin", std::string(bytes.substr(bytes.size() - tail)));
  try {
    read_all(pretrain_gpt::IndexedDataset(folder.file("data")));
  } catch (const UserError&) {
  }
}

}  // namespace dualpipe::fuzz
