#include "plugin/compare/html_report.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "plugin/compare/report_page.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr std::string_view kOrigin = "report";
constexpr int kDeepest = 32;  // Objects and lists in each other; a comparison needs 8. More would cost stack elsewhere.

using Replacements = std::vector<std::pair<std::string, std::string_view>>;

std::string replaced(std::string_view text, const Replacements& replacements) {
  std::string result;
  while (!text.empty()) {
    std::size_t length = 1;
    std::string_view put = text.substr(0, 1);
    for (const auto& [from, to] : replacements) {
      if (text.starts_with(from)) {
        length = from.size();
        put = to;
        break;
      }
    }
    result += put;
    text.remove_prefix(length);
  }
  return result;
}

std::string as_html(std::string_view text) {
  return replaced(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// JSON that ends no script element early, and that is a JavaScript literal as well: these stand in its strings alone.
std::string as_script(const std::string& json) {
  return replaced(
      json,
      {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}});
}

bool watch_depth(int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
  if (depth > kDeepest)
    throw ScheduleError(kOrigin, "a comparison must have at most " + std::to_string(kDeepest) +
                                     " objects and lists in each other, got more");
  return true;
}

nlohmann::json parse(std::string_view text) {
  try {
    return nlohmann::json::parse(text, watch_depth);
  } catch (const nlohmann::json::exception& error) {
    throw ScheduleError(kOrigin, std::string("a comparison must be JSON, got ") + error.what());
  }
}

template <typename T>
void require(const nlohmann::json& json, const char* key, const T& wanted) {
  const nlohmann::json got = json.is_object() ? json.value(key, nlohmann::json()) : nlohmann::json();
  if (got == wanted) return;
  throw ScheduleError(kOrigin, "\"" + std::string(key) + "\" of a comparison must be " + nlohmann::json(wanted).dump() +
                                   ", got " + got.dump());
}

}  // namespace

std::string html_report(std::string_view comparison) {
  const nlohmann::json json = parse(comparison);
  require(json, "format", "dualpipe-comparison");
  require(json, "version", 1);
  if (!json.contains("runs") || !json["runs"].is_array())
    throw ScheduleError(kOrigin, "\"runs\" of a comparison must be a list, one entry per schedule");
  const nlohmann::json title = json.value("title", nlohmann::json());
  const std::string shown = as_html(title.is_string() ? title.get<std::string>() : "A comparison");
  const std::string data = as_script(json.dump());
  Replacements parts = {{"{{title}}", shown}, {"{{data}}", data}};
  for (const auto& [name, text] : compare::report_page()) parts.emplace_back("{{" + std::string(name) + "}}", text);
  return replaced(compare::report_page().front().text, parts);
}

}  // namespace dualpipe
