// What users of other projects have reported about plans and pictures, held right here.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugin/analysis/grid.h"
#include "plugin/analysis/report.h"
#include "plugin/analysis/simulate.h"
#include "plugin/analysis/trace.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {ranks, num_microbatches, 2});
}

TEST(FieldReport40, DualpipeHoldsAtMostOneActivationMoreThanRanks) {
  const Schedule schedule = make("dualpipe", 4, 16);
  const std::vector<int> peaks = peak_activations(schedule);
  EXPECT_EQ(*std::max_element(peaks.begin(), peaks.end()), 5);
  EXPECT_EQ(memory_bound(schedule)->formula, "P+1");
  EXPECT_EQ(memory_bound(schedule)->value, 5);
}

TEST(FieldReport77, ThePictureHasThePublishedOrderAndItsBubbles) {
  const Schedule schedule = make("dualpipe", 8, 20);
  std::ifstream golden("tests/golden/dualpipe_r8_m20.csv");
  ASSERT_TRUE(golden) << "tests run in the repository's root";
  const std::string published((std::istreambuf_iterator<char>(golden)), {});
  std::ostringstream rows;
  print_rows(rows, schedule.rows);
  EXPECT_EQ(rows.str(), published);

  const Timeline timeline = simulate(schedule, parse_cost("forward=1,backward_input=1,backward_weight=1,overlapped=3"));
  EXPECT_EQ(timeline.makespan(), 66);
  const std::string picture = to_grid(timeline);
  std::istringstream lines(picture);
  std::string line;
  std::getline(lines, line);  // The ruler.
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    std::getline(lines, line);
    std::size_t from = 0;
    for (const Action& action : schedule.rows[rank]) {
      from = line.find("|" + to_string(action.op), from);
      ASSERT_NE(from, std::string::npos) << to_string(action) << " in " << line;
      ++from;
    }
  }
}

TEST(FieldReport79, TheClosedFormOfZb1pIsTheSimulatedIdleTime) {
  const PlanReport plan = report(make("zb1p", 4, 8), parse_cost("forward=1,backward_input=1,backward_weight=1"));
  EXPECT_EQ(plan.bubble_closed_form, 3);
  EXPECT_EQ(*std::max_element(plan.idle.begin(), plan.idle.end()), 3);
  EXPECT_EQ(closed_form("zb1p").formula, "(P-1)(F+B-2W)");
}

// A lane per rank, and every action where the simulation has it.
void expect_trace_of(const Schedule& schedule) {
  const Timeline timeline = simulate(schedule);
  const auto events = nlohmann::json::parse(to_trace(timeline)).at("traceEvents");
  std::vector<std::size_t> next(timeline.ranks.size());
  std::size_t lanes = 0;
  for (const auto& event : events) {
    if (event.at("ph") == "M") {
      ++lanes;
      continue;
    }
    const std::size_t rank = event.at("tid");
    const Span& span = timeline.ranks.at(rank).at(next.at(rank)++);
    EXPECT_EQ(event.at("name"), to_string(span.action));
    EXPECT_EQ(event.at("ts"), 1000 * span.start);
    EXPECT_EQ(event.at("dur"), 1000 * (span.end - span.start));
  }
  EXPECT_EQ(lanes, timeline.ranks.size());
  for (std::size_t rank = 0; rank < next.size(); ++rank) EXPECT_EQ(next[rank], timeline.ranks[rank].size());
}

TEST(FieldReport80, EveryShapeHasAPictureWithEveryOperation) {
  for (const char* name : {"1f1b", "zb1p"}) {
    for (const int ranks : {1, 2, 4}) {
      for (const int num_microbatches : {1, 64}) {
        const Schedule schedule = make(name, ranks, num_microbatches);
        const std::string picture = to_grid(simulate(schedule));
        std::map<std::pair<int, Kind>, int> counts;
        for (const Row& row : schedule.rows) {
          for (const Action& action : row) {
            ++counts[{action.op.stage, action.op.kind}];
            EXPECT_THAT(picture, testing::HasSubstr("|" + to_string(action.op)));
          }
        }
        expect_trace_of(schedule);
        for (int stage = 0; stage < ranks; ++stage) {
          EXPECT_EQ((counts[{stage, Kind::kForward}]), num_microbatches);
          const bool is_split = std::string(name) == "zb1p";
          EXPECT_EQ((counts[{stage, Kind::kBackward}]), is_split ? 0 : num_microbatches);
          EXPECT_EQ((counts[{stage, Kind::kBackwardInput}]), is_split ? num_microbatches : 0);
          EXPECT_EQ((counts[{stage, Kind::kBackwardWeight}]), is_split ? num_microbatches : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dualpipe
