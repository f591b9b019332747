#include "plugin/analysis/strict_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <utility>

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/error.h"

namespace dualpipe::analysis {
namespace {

using nlohmann::json;

constexpr std::size_t kLongest = 40;  // Of a value that a message cites.

constexpr const char* kBetweenValues = " \t\r\n,:[]{}";

std::string shortened(const std::string& text) {
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

std::string describe(const json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return "a list";
  }
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// "line 3, column 14", both from 1.
std::string place_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1;  // 0 where there is none.
  return "line " + std::to_string(line) + ", column " + std::to_string(offset - start + 1);
}

// Of the word that `offset` lies in, its first character.
std::size_t start_of_word(std::string_view text, std::size_t offset) {
  return text.find_last_of(kBetweenValues, offset) + 1;  // 0 where there is none.
}

std::string_view word_at(std::string_view text, std::size_t start) {
  return text.substr(start, text.find_first_of(kBetweenValues, start) - start);
}

// NaN, -Infinity, 1e999: other languages read and write them, JSON has no such values.
bool is_number_without_end(std::string_view word) {
  const std::string text(word);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && !std::isfinite(value);
}

// What a parser lets pass: too much depth, which costs stack elsewhere, and keys that stand twice. And what it does not
// know of a number that no double holds: the key.
class Watch : public nlohmann::json_sax<json> {
 public:
  Watch(std::string_view text, const std::string& file, int deepest) : text_(text), file_(file), deepest_(deepest) {}

  bool start_object(std::size_t) override { return enter(/*is_list=*/false); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(/*is_list=*/true); }
  bool end_array() override { return leave(); }
  bool key(std::string& name) override {
    if (!open_.back().keys.insert(name).second) {
      throw ScheduleError(file_, "key '" + name + "' must be given once in an object, got it twice");
    }
    open_.back().key = name;
    return true;
  }
  bool null() override { return pass(); }
  bool boolean(bool) override { return pass(); }
  bool number_integer(std::int64_t) override { return pass(); }
  bool number_unsigned(std::uint64_t) override { return pass(); }
  bool number_float(double, const std::string&) override { return pass(); }
  bool string(std::string&) override { return pass(); }
  bool binary(json::binary_t&) override { return pass(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    refuse_number_without_end(position);
    return false;  // parse() says.
  }

 private:
  // An object or list that has not ended.
  struct Open {
    bool is_list = false;
    std::set<std::string> keys;
    std::string key;         // The last of them.
    std::size_t passed = 0;  // Of a list: how many values it has had.
  };

  bool enter(bool is_list) {
    if (open_.size() + 1 > static_cast<std::size_t>(deepest_)) {
      throw ScheduleError(file_, "must have at most " + std::to_string(deepest_) +
                                     " objects and lists in each other, got more; 'dualpipe profile' writes a file "
                                     "that works");
    }
    open_.push_back({is_list, {}, {}, 0});
    return true;
  }
  bool leave() {
    open_.pop_back();
    return pass();
  }
  bool pass() {
    if (!open_.empty()) {
      ++open_.back().passed;
    }
    return true;
  }

  // "stages[2].forward" of the value that is being read.
  std::string path() const {
    std::string path;
    for (const Open& open : open_) {
      path += open.is_list ? "[" + std::to_string(open.passed) + "]" : (path.empty() ? "" : ".") + open.key;
    }
    return path;
  }

  // `position` is behind the last character that was read.
  void refuse_number_without_end(std::size_t position) const {
    if (open_.empty() || position == 0) {
      return;
    }
    const std::size_t start = start_of_word(text_, position - 1);
    const std::string_view word = word_at(text_, start);
    if (is_number_without_end(word)) {
      throw ScheduleError(file_, path() + " must be a finite number, such as 1.5, got " + shortened(std::string(word)) +
                                     " at " + place_of(text_, start));
    }
  }

  std::string_view text_;
  const std::string& file_;
  int deepest_;
  std::vector<Open> open_;
};

// "[json.exception.parse_error.101] parse error at line 1, ..." without the part that is for programmers.
std::string reason(const std::string& message) {
  const std::size_t end = message.find("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

}  // namespace

json parse_strict(std::string_view text, const std::string& file, int deepest) {
  Watch watch(text, file, deepest);
  json::sax_parse(text.begin(), text.end(), &watch);
  try {
    return json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    throw ScheduleError(file, "must be JSON: " + reason(error.what()));
  }
}

StrictObject::StrictObject(const json& value, const std::string& file, std::string path)
    : value_(&value), file_(file), path_(std::move(path)) {
  if (!value.is_object()) {
    throw ScheduleError(file_,
                        (path_.empty() ? "the file" : path_) + " must be an object {...}, got " + describe(value));
  }
}

void StrictObject::allow(std::initializer_list<const char*> keys) const {
  const std::vector<std::string> known(keys.begin(), keys.end());
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string near = nearest_name(key, known);
      std::string all;
      for (const std::string& name : known) {
        all += (all.empty() ? "" : ", ") + name;
      }
      throw ScheduleError(file_, "unknown key '" + path_of(key.c_str()) +
                                     "': " + (near.empty() ? "known are " + all : "did you mean '" + near + "'?"));
    }
  }
}

bool StrictObject::has(const char* key) const {
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

double StrictObject::amount(const char* key) const {
  const std::string wanted = "a finite number of at least 0, such as 1.5";
  const json& value = at(key, wanted);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
    refuse(key, wanted, describe(value));
  }
  if (value.get<double>() > kMostCost) refuse(key, "at most 1e15, such as 1.5", describe(value));
  return value.get<double>();
}

std::optional<double> StrictObject::optional_amount(const char* key) const {
  return has(key) ? std::optional(amount(key)) : std::nullopt;
}

std::string StrictObject::text(const char* key) const {
  const json& value = at(key, "text, such as \"embedding\"");
  if (!value.is_string()) {
    refuse(key, "text, such as \"embedding\"", describe(value));
  }
  return value.get<std::string>();
}

std::vector<StrictObject> StrictObject::objects(const char* key) const {
  const json& value = at(key, "a list of objects [{...}, ...]");
  if (!value.is_array()) {
    refuse(key, "a list of objects [{...}, ...]", describe(value));
  }
  std::vector<StrictObject> objects;
  objects.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    objects.emplace_back(value[i], file_, path_of(key) + "[" + std::to_string(i) + "]");
  }
  return objects;
}

void StrictObject::require(const char* key, const json& wanted) const {
  const json& value = at(key, wanted.dump());
  if (value != wanted) {
    refuse(key, wanted.dump(), describe(value));
  }
}

const json& StrictObject::at(const char* key, const std::string& wanted) const {
  const auto found = value_->find(key);
  if (found == value_->end()) {
    refuse(key, wanted, "nothing");
  }
  return *found;
}

void StrictObject::refuse(const char* key, const std::string& wanted, const std::string& given) const {
  throw ScheduleError(file_, path_of(key) + " must be " + wanted + ", got " + given);
}

}  // namespace dualpipe::analysis
