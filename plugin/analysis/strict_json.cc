#include "plugin/analysis/strict_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/error.h"

namespace dualpipe::analysis {
namespace {

using nlohmann::json;

constexpr std::size_t kLongest = 40;  // Of a value that a message cites.

std::string describe(const json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return "a list";
  }
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

// What a parser lets pass: too much depth, which costs stack elsewhere, and keys that stand twice.
class Watch : public nlohmann::json_sax<json> {
 public:
  Watch(const std::string& file, int deepest) : file_(file), deepest_(deepest) {}

  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return enter();
  }
  bool end_object() override {
    keys_.pop_back();
    return leave();
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second) {
      throw ScheduleError(file_, "key '" + name + "' must be given once in an object, got it twice");
    }
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }  // parse() says.

 private:
  bool enter() {
    if (++depth_ > deepest_) {
      throw ScheduleError(file_, "must have at most " + std::to_string(deepest_) +
                                     " objects and lists in each other, got more; 'dualpipe profile' writes a file "
                                     "that works");
    }
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& file_;
  int deepest_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // Of the objects that are open.
};

// "[json.exception.parse_error.101] parse error at line 1, ..." without the part that is for programmers.
std::string reason(const std::string& message) {
  const std::size_t end = message.find("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

}  // namespace

json parse_strict(std::string_view text, const std::string& file, int deepest) {
  Watch watch(file, deepest);
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
