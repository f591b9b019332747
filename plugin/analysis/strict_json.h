// plugin/analysis/strict_json.h
//
// JSON that a user wrote or changed, read without guessing: every mistake is told with its file and its key.
//
// All of it throws ScheduleError with the file's name as the origin, and calls a key by its path: "stages[2].forward".
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dualpipe::analysis {

// Refuses what is no JSON, a key that stands twice in an object, numbers that no double holds, and more than `deepest`
// objects and lists in each other. NaN and Infinity, which are no JSON, are told as numbers are, with their key.
nlohmann::json parse_strict(std::string_view text, const std::string& file, int deepest);

// One object of the file; refers to the parsed value, which must outlive it.
class StrictObject {
 public:
  // `path` is empty for the file's own object. Throws where the value is no object.
  StrictObject(const nlohmann::json& value, const std::string& file, std::string path);

  void allow(std::initializer_list<const char*> keys) const;  // Throws for any other key, with the nearest of these.
  bool has(const char* key) const;                            // There, and not null.

  double amount(const char* key) const;  // A finite number of at least 0.
  std::optional<double> optional_amount(const char* key) const;
  std::string text(const char* key) const;
  std::vector<StrictObject> objects(const char* key) const;

  // Throws unless the key has this value.
  void require(const char* key, const nlohmann::json& value) const;

 private:
  const nlohmann::json& at(const char* key, const std::string& wanted) const;
  std::string path_of(const char* key) const { return path_.empty() ? key : path_ + "." + key; }
  [[noreturn]] void refuse(const char* key, const std::string& wanted, const std::string& given) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace dualpipe::analysis
