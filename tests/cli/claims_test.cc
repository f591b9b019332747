// claims and scale.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

struct Claim {
  const char* schedule;
  int num_microbatches;
  double overlapped;  // 0 where nothing can overlap.
  int parameters;
  double time;
  double busy;              // Per cent; all to one decimal.
  double against_smallest;  // 1f1b at M=8.
  double against_equal;     // 1f1b at M=16.
};

double to_one_decimal(double share) { return std::round(1000 * share) / 10; }

TEST(Claims, EachNumberIsTheSimulators) {
  const Claim claims[] = {
      {"1f1b", 8, 0, 1, 90, 53.3, 0, 30.4},
      {"1f1b", 16, 0, 1, 69, 69.6, -23.3, 0},
      {"interleaved_1f1b", 16, 0, 1, 58.5, 82.1, -35, -15.2},
      {"zb1p", 16, 0, 1, 55, 87.3, -38.9, -20.3},
      {"dualpipe", 16, 3, 2, 54, 88.9, -40, -21.7},
      {"dualpipe", 16, 2.25, 2, 46.5, 93.1, -48.3, -32.6},
      {"dualpipe", 16, 1.5, 2, 42, 92, -53.3, -39.1},
      {"dualpipev", 16, 3, 1, 55, 87.3, -38.9, -20.3},
      {"dualpipev", 16, 2.25, 1, 46.75, 92.7, -48.1, -32.2},
      {"dualpipev", 16, 1.5, 1, 43, 90, -52.2, -37.7},
  };
  const Outcome run = run_dualpipe("claims --format json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out);
  ASSERT_EQ(rows.size(), std::size(claims));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    EXPECT_EQ(rows[i]["schedule"], claims[i].schedule);
    EXPECT_EQ(rows[i]["num_microbatches"], claims[i].num_microbatches);
    EXPECT_EQ(rows[i]["overlapped"].is_null() ? 0 : rows[i]["overlapped"].get<double>(), claims[i].overlapped);
    EXPECT_EQ(rows[i]["parameters"], claims[i].parameters);
    EXPECT_EQ(rows[i]["time"], claims[i].time);
    EXPECT_EQ(to_one_decimal(rows[i]["utilization"]), claims[i].busy);
    EXPECT_EQ(to_one_decimal(rows[i]["against_1f1b_m8"]), claims[i].against_smallest);
    EXPECT_EQ(to_one_decimal(rows[i]["against_1f1b_m16"]), claims[i].against_equal);
  }
}

TEST(Claims, AreSaidInWords) {
  const std::string text = run_dualpipe("claims").out;
  EXPECT_THAT(text, HasSubstr("1f1b at M=8, dualpipe at M=16, nothing overlapped: 53.3% to 88.9%, -40.0%.\n"));
  EXPECT_THAT(text, HasSubstr("-21.7% where nothing overlaps (F&B = 3), -32.6% at F&B = 2.25, -39.1% at 1.5.\n"));
  EXPECT_THAT(text, HasSubstr("zb1p takes 55 against dualpipe's 54, with half the parameters.\n"));
}

// The table and the words stand in the README as the command prints them.
TEST(Claims, TheReadmeShowsThem) {
  const std::string text = run_dualpipe("claims").out;
  const std::size_t words = text.find("* ");
  const std::size_t table = text.find("schedule  ");
  ASSERT_NE(words, std::string::npos);
  ASSERT_NE(table, std::string::npos);
  const std::string readme = read_text("README.md");
  EXPECT_THAT(readme, HasSubstr(text.substr(table, words - table - 1)));
  EXPECT_THAT(readme, HasSubstr(text.substr(words)));
}

constexpr const char* kSmallScale = "scale -P 4,16 --microbatches-per-rank 2,4 --latency 0,1 --cost overlapped=2.25 ";

std::size_t count_sends(const Schedule& schedule) {
  std::size_t sends = 0;
  for (const Row& row : lower(schedule).rows) {
    for (const Action& action : row) {
      sends += is_send(action.op.kind) ? 1 : 0;
    }
  }
  return sends;
}

TEST(Scale, AgreesWithThePlanAndTheLoweredProgram) {
  const Outcome run = run_dualpipe(std::string(kSmallScale) + "--format json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = nlohmann::json::parse(run.out);
  ASSERT_EQ(rows.size(), 2u * 2 * 5);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const std::string name = row["schedule"];
    const int ranks = row["pipeline_model_parallel_size"];
    const int num_microbatches = row["num_microbatches"];
    EXPECT_EQ(row["messages"], count_sends(builtin_registry().make(name, {ranks, num_microbatches, 2})));
    const bool halves = name == "interleaved_1f1b" || name == "dualpipev";
    for (const auto& step : row["steps"]) {
      const std::string cost = halves ? "forward=0.5,backward_input=0.5,backward_weight=0.5,overlapped=1.125"
                                      : "forward=1,backward_input=1,backward_weight=1,overlapped=2.25";
      const auto plan = nlohmann::json::parse(run_dualpipe("plan -s " + name + " -P " + std::to_string(ranks) + " -M " +
                                                           std::to_string(num_microbatches) + " --cost " + cost +
                                                           ",latency=" + step["latency"].dump() + " --format json")
                                                  .out);
      EXPECT_EQ(step["makespan"], plan["makespan"]);
      EXPECT_DOUBLE_EQ(step["bubble"], 1 - plan["utilization"].get<double>());
    }
    for (const char* key : {"generate_seconds", "lower_seconds", "simulate_seconds"}) {
      EXPECT_GE(row[key], 0) << key;
      EXPECT_LT(row[key], 10) << key;
    }
  }
}

TEST(Scale, PrintsALinePerCase) {
  const Outcome run = run_dualpipe(kSmallScale);
  EXPECT_THAT(run.out, HasSubstr("    4     16  dualpipe                 96 "));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '|'), 1 + 2 * 2 * 5);
}

TEST(Scale, SaysWhatAScheduleCannotDo) {
  const Outcome run = run_dualpipe("scale -P 4 --microbatches-per-rank 1 --schedules 1f1b,dualpipe");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out,
              HasSubstr("dualpipe         [dualpipe] num_microbatches must be at least 2 x ranks = 8, got 4\n"));
}

TEST(Scale, RefusesMistakes) {
  for (const auto& [arguments, message] :
       {std::pair{"--schedules dualpip", "dualpip"}, std::pair{"-P 0", "0"}, std::pair{"--latency -1", "-1"},
        std::pair{"--cost forward=x", "[cost] forward must be a finite number"},
        std::pair{"--cost latency=1", "[scale] latency must stand in --latency"}}) {
    const Outcome run = run_dualpipe(std::string("scale ") + arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace dualpipe
