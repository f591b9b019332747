// examples/pretrain_gpt/checkpoint/strict_json.h
//
// JSON from outside: UTF-8, no key twice, and no deeper than it has to be.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pretrain_gpt {

// Throws CheckpointError(origin, ...). What it allocates is in proportion to the text.
nlohmann::json parse_strict_json(std::string_view text, const std::string& origin, int most_depth);

// Members and their types; each throws CheckpointError(origin, "<where> must be ..., got ..."), where `where` names the
// value in the file.
const nlohmann::json& member(const nlohmann::json& object, const std::string& key, const std::string& where,
                             const std::string& origin);
std::int64_t as_count(const nlohmann::json& value, const std::string& where, const std::string& origin);
std::vector<std::int64_t> as_counts(const nlohmann::json& value, const std::string& where, const std::string& origin);
std::string as_text(const nlohmann::json& value, const std::string& where, const std::string& origin);

// A value as a message shows it: its beginning.
std::string shown(const nlohmann::json& value);

}  // namespace pretrain_gpt
