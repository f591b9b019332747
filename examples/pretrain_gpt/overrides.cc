#include "examples/pretrain_gpt/overrides.h"

#include <fmt/format.h>

#include "examples/pretrain_gpt/config_fields.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/strict_yaml.h"

namespace pretrain_gpt {
namespace {

YAML::Node value_node(const ConfigField* field, const std::string& text, const std::string& origin) {
  if (field != nullptr && field->is_text) {
    return YAML::Node(text);
  }
  try {
    check_plain_yaml(text, [&](int /*line*/) { return origin; });
    return YAML::Load(text);
  } catch (const YAML::ParserException& error) {
    throw UserError(origin, fmt::format("the value must be YAML; {}", error.msg));
  }
}

}  // namespace

void read_override(ConfigReader& reader, const std::string& assignment) {
  const std::string origin = "--set " + assignment;
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UserError(origin, "must be key=value; for example --set lr=0.001");
  }
  const std::string key = assignment.substr(0, equals);
  reader.read(key, value_node(find_config_field(key), assignment.substr(equals + 1), origin), origin);
}

}  // namespace pretrain_gpt
