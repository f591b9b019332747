// examples/pretrain_gpt/config_fields.h
//
// The table of configuration keys: how each is read from a YAML node, checked and printed.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

struct ConfigField {
  std::string key;
  bool is_text;  // A --set value is taken as it stands, not read as YAML.
  // Throws UserError(origin, ...) if the node does not hold a value of this key.
  std::function<void(Config&, const YAML::Node&, const std::string& origin)> read;
  std::function<std::string(const Config&)> print;  // "" where an optional key has no value.
};

// In the order of Config.
const std::vector<ConfigField>& config_fields();

std::vector<std::string> config_keys();

// Null if there is no such key.
const ConfigField* find_config_field(const std::string& key);

}  // namespace pretrain_gpt
