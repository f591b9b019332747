// The page as text: what it holds, how it is escaped, what is refused. tests/browser looks at it in a browser.
#include "plugin/compare/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using testing::Not;

nlohmann::json comparison() {
  return {{"format", "dualpipe-comparison"}, {"version", 1}, {"title", "a.yaml"}, {"runs", nlohmann::json::array()}};
}

// What stands between the script tags of the data.
std::string data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"comparison\">";
  const std::size_t from = page.find(begin) + begin.size();
  return page.substr(from, page.find("</script>", from) - from);
}

TEST(HtmlReport, HoldsTheComparison) {
  nlohmann::json json = comparison();
  json["runs"].push_back({{"schedule", "dualpipe"}, {"ms", {{"median", 0.1}}}, {"failure", nullptr}});
  EXPECT_EQ(nlohmann::json::parse(data_of(html_report(json.dump()))), json);
}

TEST(HtmlReport, NothingInTheDataEndsItsScriptOrIsMarkup) {
  nlohmann::json json = comparison();
  json["title"] = "</title><b> & \"c\" {{data}}";
  json["command"] = "</script><!-- \xE2\x80\xA8 \xE2\x80\xA9 ]]> \\u003c {{title}}";
  const std::string page = html_report(json.dump());
  EXPECT_THAT(page,
              HasSubstr("<title>&lt;/title&gt;&lt;b&gt; &amp; &quot;c&quot; {{data}}: schedules compared</title>"));
  const std::string data = data_of(page);
  EXPECT_EQ(data.find_first_of("<>&"), std::string::npos);
  EXPECT_THAT(data, Not(HasSubstr("\xE2\x80")));
  EXPECT_EQ(nlohmann::json::parse(data), json);
}

TEST(HtmlReport, AsksForNothing) {
  const std::string page = html_report(comparison().dump());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
  std::smatch found;
  EXPECT_FALSE(
      std::regex_search(page, found, std::regex("(src|href)=\"(?!#|data:)|@import|url\\(|\\bfetch\\(|import ")))
      << found.str();
}

TEST(HtmlReport, RefusesWhatIsNoComparison) {
  const auto message_of = [](const std::string& text) {
    try {
      html_report(text);
    } catch (const ScheduleError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message_of("{"), testing::StartsWith("[report] a comparison must be JSON, got "));
  EXPECT_EQ(message_of("[]"), "[report] \"format\" of a comparison must be \"dualpipe-comparison\", got null");
  nlohmann::json json = comparison();
  json["format"] = "dualpipe-cost";
  EXPECT_EQ(message_of(json.dump()),
            "[report] \"format\" of a comparison must be \"dualpipe-comparison\", got \"dualpipe-cost\"");
  json = comparison();
  json["version"] = 2;
  EXPECT_EQ(message_of(json.dump()), "[report] \"version\" of a comparison must be 1, got 2");
  json = comparison();
  json["runs"] = nullptr;
  EXPECT_EQ(message_of(json.dump()), "[report] \"runs\" of a comparison must be a list, one entry per schedule");
}

}  // namespace
}  // namespace dualpipe
