// plugin/compare/json_line.h
//
// A line of a file that holds a JSON object per line. Whatever is wrong with it is told with file and line:
//   [run/metrics.jsonl:7] "ms" must be a number, got "fast"
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dualpipe::compare {

class JsonLine {
 public:
  // `line` counts from 1. Throws ScheduleError where the text is no JSON object.
  JsonLine(std::string file, int line, std::string_view text);

  // Null counts.
  bool contains(const char* key) const { return object_.contains(key); }

  // Each throws ScheduleError where the key is missing or holds something else. Numbers are finite.
  std::string text(const char* key) const;
  double number(const char* key, double least) const;
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const;
  const nlohmann::json& list(const char* key) const;

  // The same where the key may be missing or null.
  std::optional<double> optional_number(const char* key, double least) const;
  std::optional<std::int64_t> optional_integer(const char* key, std::int64_t least, std::int64_t most) const;
  const nlohmann::json& optional_list(const char* key) const;  // An empty one.

  // Throws ScheduleError("[file:line] rule").
  [[noreturn]] void refuse(const std::string& rule) const;
  // "must be <wanted>, got <value>" of a value in or below `key`.
  [[noreturn]] void refuse(const char* key, const std::string& wanted, const nlohmann::json& given) const;

 private:
  bool has(const char* key) const;
  const nlohmann::json& at(const char* key) const;

  std::string file_;
  int line_;
  nlohmann::json object_;
};

// All lines of a file. Throws ScheduleError where it cannot be read or has none, and for a last line that was cut off.
std::vector<JsonLine> read_json_lines(const std::filesystem::path& file);

}  // namespace dualpipe::compare
