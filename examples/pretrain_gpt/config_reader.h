// examples/pretrain_gpt/config_reader.h
//
// Reads a configuration key by key and remembers where each value came from, so that a rule between keys can say so.
#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <string>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

class ConfigReader {
 public:
  // All keys of a YAML text; each at most once. `name` stands for the file in messages, which say "name:line".
  void read_yaml(const std::string& yaml, const std::string& name);

  // One key. Later values win.
  void read(const std::string& key, const YAML::Node& value, const std::string& origin);

  bool has(const std::string& key) const { return origins_.contains(key); }  // Whether it was given.

  // Checks the rules between keys.
  Config finish() const;

  // "key = value (origin)", for messages about more than one key.
  std::string cite(const std::string& key) const;

 private:
  std::string origin_of(const std::string& key) const;  // "default" where it was not given.

  Config config_;
  std::map<std::string, std::string> origins_;
};

}  // namespace pretrain_gpt
