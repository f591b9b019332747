#include "plugin/analysis/grid.h"

#include <gmock/gmock.h>

#include <regex>
#include <sstream>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

// As a terminal shows it: without escapes, the thin border as a bar.
std::string plain(std::string text) {
  text = std::regex_replace(text, std::regex("\033\\[[0-9;]*m"), "");
  return std::regex_replace(text, std::regex("\u258f"), "|");
}

Timeline timeline_of(const std::string& name, int ranks, int num_microbatches, const std::string& cost = "") {
  return simulate(builtin_registry().make(name, {ranks, num_microbatches, 2}), parse_cost(cost));
}

TEST(Grid, DrawsDualpipeOnTwoRanks) {
  EXPECT_EQ(
      to_grid(timeline_of("dualpipe", 2, 4)),
      "time   0                   5                   10\n"
      "rank 0 |0F0|1F2|0F1|1B2    |1F3  +0B0  |1B3    |0I1|0W1|\n"
      "rank 1 |0F2|1F0|0F3|1B0    |1F1  +0B2  |1B1    |0I3|0W3|\n"
      "\n"
      "cells are <stage><kind><micro-batch>: F forward, B backward, I input gradient, W weight gradient; |F +B an "
      "overlapped pair\n");
}

TEST(Grid, CellsStartWhereTheirTimeIs) {
  const Timeline timeline = timeline_of("dualpipe", 4, 10, "overlapped=2.25");
  const std::vector<std::string> lines = lines_of(to_grid(timeline));
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const std::string& line = lines[rank + 1];
    std::size_t last = 0;
    for (const Span& span : timeline.ranks[rank]) {
      const std::size_t found = line.find("|" + to_string(span.action.op), last);
      ASSERT_NE(found, std::string::npos) << to_string(span.action) << "\n" << line;
      last = found;
    }
  }
}

TEST(Grid, ColourHidesNothing) {
  for (const char* name : {"dualpipe", "dualpipev", "zb1p", "interleaved_1f1b", "1f1b"}) {
    const Timeline timeline = timeline_of(name, 4, 12);
    const std::vector<std::string> without = lines_of(to_grid(timeline));
    const std::vector<std::string> with = lines_of(plain(to_grid(timeline, {.colour = true})));
    ASSERT_EQ(with.size(), without.size());
    for (std::size_t rank = 1; rank <= 4; ++rank) {
      for (const Span& span : timeline.ranks[rank - 1]) {
        EXPECT_THAT(with[rank], testing::HasSubstr("|" + to_string(span.action.op))) << name;
      }
    }
  }
}

TEST(Grid, ContinuesBelowWhereTheTerminalEnds) {
  const Timeline timeline = timeline_of("dualpipe", 8, 20);
  const std::vector<std::string> lines = lines_of(to_grid(timeline, {.max_width = 90}));
  int bands = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {  // The last line is the legend.
    EXPECT_LE(lines[i].size(), 90u) << lines[i];
    bands += lines[i].starts_with("time ") ? 1 : 0;
  }
  EXPECT_EQ(bands, 5);
}

TEST(Grid, SaysWhatIsLeftOut) {
  const std::string text = to_grid(timeline_of("dualpipe", 8, 20), {.max_width = 90, .max_bands = 2});
  EXPECT_THAT(text, testing::HasSubstr("... from time 32 to 66 is left out\n"));
}

TEST(Grid, DrawsWhatTakesNoTimeAndNothingAtAll) {
  EXPECT_THAT(to_grid(timeline_of("1f1b", 2, 2, "backward_input=0,backward_weight=0")), testing::HasSubstr("|1F1"));
  EXPECT_THAT(to_grid(timeline_of("1f1b", 2, 2, "forward=0,backward_input=0,backward_weight=0")),
              testing::HasSubstr("rank 1"));
  EXPECT_THAT(to_grid(timeline_of("1f1b", 2, 2, "forward=1e-9,backward_input=1e9")), testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace dualpipe
