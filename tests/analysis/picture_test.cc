#include "plugin/analysis/picture.h"

#include <gmock/gmock.h>

#include "plugin/analysis/svg.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using testing::Not;

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {ranks, num_microbatches, 2});
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

std::size_t count_actions(const Schedule& schedule) {
  std::size_t actions = 0;
  for (const Row& row : schedule.rows) {
    actions += row.size();
  }
  return actions;
}

TEST(Picture, DrawsAnActionToScaleWithItsNumberAndTimes) {
  const Timeline timeline = simulate(make("1f1b", 1, 1));
  EXPECT_THAT(to_svg(timeline, {.title = "one"}),
              HasSubstr("<g class=\"cell\"><title>0F0, 0 to 1</title>"
                        "<rect class=\"f1\" x=\"52\" y=\"98\" width=\"282.67\" height=\"24.64\"/>"
                        "<text class=\"n1\" x=\"193.34\" y=\"114.52\">0</text></g>\n"
                        "<g class=\"cell\"><title>0B0, 1 to 3</title>"
                        "<rect class=\"b1\" x=\"334.67\" y=\"98\" width=\"565.33\" height=\"24.64\"/>"));
}

TEST(Picture, EveryActionIsACellAtEverySize) {
  for (const int ranks : {2, 8, 64, 128}) {
    const Schedule schedule = make("dualpipe", ranks, 2 * ranks);
    const std::string picture = to_svg(simulate(schedule), {.placement = schedule.placement});
    EXPECT_EQ(count(picture, "<g class=\"cell\"><title>"), count_actions(schedule)) << ranks;
  }
}

TEST(Picture, NumbersAreUprightWhereCellsAreNarrowAndLeftOutWhereTheyAreTiny) {
  const auto numbers = [](int ranks, int width) {
    return to_svg(simulate(make("dualpipe", ranks, 2 * ranks)), {.width = width});
  };
  const std::string few = numbers(8, 0);
  EXPECT_THAT(few, HasSubstr("class=\"n1\""));
  EXPECT_THAT(few, Not(HasSubstr("rotate(-90")));
  const std::string many = numbers(64, 0);
  EXPECT_EQ(count(many, "class=\"n1\""), count(many, "rotate(-90"));
  EXPECT_GT(count(many, "rotate(-90"), 64 * 3 * 64u);
  EXPECT_THAT(numbers(64, 800), Not(HasSubstr("class=\"n1\"")));
}

TEST(Picture, WhatARankHoldsSecondIsDark) {
  const auto picture = [](const std::string& name) {
    const Schedule schedule = make(name, 4, 8);
    return to_svg(simulate(schedule), {.placement = schedule.placement});
  };
  EXPECT_THAT(picture("1f1b"), Not(HasSubstr("class=\"f2\"")));
  const std::string both_ways = picture("dualpipe");
  EXPECT_THAT(both_ways, HasSubstr("<title>0F4, 0 to 1</title><rect class=\"f2\""));
  EXPECT_THAT(both_ways, HasSubstr("<title>0F0, 0 to 1</title><rect class=\"f1\""));
  EXPECT_THAT(both_ways, HasSubstr("dark: micro-batches that enter at rank 3"));
  const std::string vee = picture("dualpipev");
  EXPECT_THAT(vee, HasSubstr("<title>4F0, 4 to 5</title><rect class=\"f2\""));
  EXPECT_THAT(vee, HasSubstr("dark: the second stage of a rank"));
  EXPECT_THAT(picture("interleaved_1f1b"), HasSubstr("dark: the second stage of a rank"));
}

TEST(Picture, TheTitleTellsMakespanAndBubble) {
  const std::string picture = to_svg(simulate(make("dualpipe", 8, 20)), {.title = "a <b> & c", .unit = "ms"});
  EXPECT_THAT(picture, HasSubstr("<title>a &lt;b&gt; &amp; c</title>"));
  EXPECT_THAT(picture, HasSubstr(">makespan 66 ms; bubble 9.1% of the ranks' time, 9.1% on the worst rank<"));
  EXPECT_THAT(picture, HasSubstr(">time in ms<"));
  EXPECT_THAT(picture, HasSubstr("rank 0 idles 6 ms of 66 ms"));
}

TEST(Picture, AMeasuredTimelineIsDrawnAsItIs) {
  Timeline timeline;
  timeline.ranks = {{{single(make_op(0, Kind::kForward, 0)), 0.5, 1.5}}, {}};
  const std::string picture = to_svg(timeline, {.title = "measured", .unit = "s"});
  EXPECT_THAT(picture, HasSubstr("<title>0F0, 0.5 to 1.5 s</title>"));
  EXPECT_THAT(picture, HasSubstr("rank 1 idles 1.5 s of 1.5 s"));
}

TEST(Picture, DrawsWhatTakesNoTimeAndNothingAtAll) {
  const Timeline instant = simulate(make("1f1b", 2, 2), parse_cost("forward=0,backward_input=0,backward_weight=0"));
  EXPECT_EQ(count(to_svg(instant), "<g class=\"cell\">"), 8u);
  EXPECT_THAT(to_svg(Timeline{}), HasSubstr("makespan 0"));
  const Timeline uneven = simulate(make("1f1b", 2, 2), parse_cost("forward=1e-9,backward_input=1e9"));
  EXPECT_THAT(to_svg(uneven), Not(HasSubstr("nan")));
}

TEST(Picture, RefusesWhatNobodyCanLookAt) {
  const auto message = [](const Timeline& timeline, const PictureOptions& options) -> std::string {
    try {
      to_svg(timeline, options);
    } catch (const ScheduleError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(Timeline{}, {.width = 100}), "[picture] width must be at least 480 pixels, got 100");
  Timeline large;
  large.ranks = {std::vector<Span>(200001)};
  EXPECT_EQ(message(large, {}),
            "[picture] a picture holds at most 200000 actions, got 200001; fewer ranks or micro-batches can be drawn");
}

TEST(Svg, TextIsValidXml) {
  EXPECT_EQ(analysis::escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;\"c\"");
  EXPECT_EQ(analysis::escaped("tab\tbell\a"), "tab?bell?");
  EXPECT_EQ(analysis::escaped("\u00e9\u2026\U0001F600"), "\u00e9\u2026\U0001F600");
  EXPECT_EQ(analysis::escaped("\xff\xc3(\xc0\x80\xed\xa0\x80"), "?\?(?????");  // Stray, overlong, a surrogate.
  EXPECT_EQ(analysis::escaped("\xef\xbf\xbf"), "???");
}

TEST(Svg, PixelsHaveTwoDecimalsAtMost) {
  EXPECT_EQ(analysis::pixels(3), "3");
  EXPECT_EQ(analysis::pixels(12.5), "12.5");
  EXPECT_EQ(analysis::pixels(1.0 / 3), "0.33");
  EXPECT_EQ(analysis::pixels(-0.001), "0");
  EXPECT_EQ(analysis::pixels(100), "100");
}

TEST(Svg, LongTextIsShortenedBetweenCharacters) {
  EXPECT_EQ(analysis::shortened("short", 10, 100), "short");
  EXPECT_EQ(analysis::shortened("\u00e9\u00e9\u00e9\u00e9\u00e9", 10, 20), "\u00e9\u00e9\u2026");
}

}  // namespace
}  // namespace dualpipe
