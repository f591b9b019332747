// examples/pretrain_gpt/strict_yaml.h
//
// YAML as configurations use it, and nothing beyond: no anchors and aliases (a few lines of which grow without bound),
// no tags, no deep nesting. Checked while the text is read, before anything is made of it.
#pragma once

#include <functional>
#include <string>

namespace pretrain_gpt {

inline constexpr int kDeepestYaml = 8;                 // Sections and lists in each other.
inline constexpr std::size_t kLongestYaml = 1U << 20;  // Bytes of a text.

// What messages name, from the number of a line (from 1).
using YamlOrigin = std::function<std::string(int line)>;

// Throws UserError for what is beyond, with the key that it belongs to; YAML::ParserException for what is no YAML.
void check_plain_yaml(const std::string& text, const YamlOrigin& origin);

}  // namespace pretrain_gpt
