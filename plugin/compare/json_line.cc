#include "plugin/compare/json_line.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe::compare {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShown = 60;
constexpr int kDeepest = 16;  // Objects and lists in each other; the files need 4. More would cost stack elsewhere.

std::string shorten(std::string_view text) {
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
}

// Bytes that are no UTF-8 are shown as such, instead of failing in turn.
std::string show(const Json& value) { return shorten(value.dump(-1, ' ', true, Json::error_handler_t::replace)); }

const Json& empty_list() {
  static const Json list = Json::array();
  return list;
}

}  // namespace

JsonLine::JsonLine(std::string file, int line, std::string_view text) : file_(std::move(file)), line_(line) {
  const auto watch_depth = [this](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest)
      refuse("must have at most " + std::to_string(kDeepest) + " objects and lists in each other, got more");
    return true;
  };
  object_ = Json::parse(text, watch_depth, /*allow_exceptions=*/false);
  if (!object_.is_object())
    refuse("must be a JSON object on one line, with null for numbers that are not finite, got: " + shorten(text));
}

void JsonLine::refuse(const std::string& rule) const { throw ScheduleError(file_ + ":" + std::to_string(line_), rule); }

void JsonLine::refuse(const char* key, const std::string& wanted, const Json& given) const {
  refuse("\"" + std::string(key) + "\" must be " + wanted + ", got " + show(given));
}

bool JsonLine::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const Json& JsonLine::at(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) refuse("\"" + std::string(key) + "\" is missing");
  return *found;
}

std::string JsonLine::text(const char* key) const {
  const Json& value = at(key);
  if (!value.is_string()) refuse(key, "text", value);
  return value.get<std::string>();
}

double JsonLine::number(const char* key, double least) const {
  const Json& value = at(key);
  if (!value.is_number()) refuse(key, "a number", value);
  const double number = value.get<double>();
  if (!std::isfinite(number)) refuse(key, "a finite number", value);
  if (number < least) refuse(key, "at least " + show(least), value);
  return number;
}

std::int64_t JsonLine::integer(const char* key, std::int64_t least, std::int64_t most) const {
  const Json& value = at(key);
  const std::string wanted = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value.is_number_integer()) refuse(key, wanted, value);
  // Above the signed range get() would wrap.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    refuse(key, wanted, value);
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) refuse(key, wanted, value);
  return number;
}

const Json& JsonLine::list(const char* key) const {
  const Json& value = at(key);
  if (!value.is_array()) refuse(key, "a list", value);
  return value;
}

std::optional<double> JsonLine::optional_number(const char* key, double least) const {
  return has(key) ? std::optional(number(key, least)) : std::nullopt;
}

std::optional<std::int64_t> JsonLine::optional_integer(const char* key, std::int64_t least, std::int64_t most) const {
  return has(key) ? std::optional(integer(key, least, most)) : std::nullopt;
}

const Json& JsonLine::optional_list(const char* key) const { return has(key) ? list(key) : empty_list(); }

std::vector<JsonLine> read_json_lines(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in.is_open() || std::filesystem::is_directory(file))
    throw ScheduleError(file.string(), "must be a file that can be read, got none");
  std::vector<JsonLine> lines;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (in.eof() && !Json::accept(line))
      throw ScheduleError(file.string() + ":" + std::to_string(number),
                          "the last line is cut off: the run ended while it wrote it, got: " + shorten(line));
    lines.emplace_back(file.string(), number, line);
  }
  if (in.bad()) throw ScheduleError(file.string(), "cannot be read to its end");
  if (lines.empty()) throw ScheduleError(file.string(), "must hold a JSON object per line, got an empty file");
  return lines;
}

}  // namespace dualpipe::compare
