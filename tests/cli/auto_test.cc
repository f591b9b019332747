// `--schedule auto` as a user meets it.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kAuto =
    "plan --schedule auto --placement v --max-activations 9 --pipeline-model-parallel-size 4 --num-microbatches 10 "
    "--cost forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0 ";

TEST(Auto, JsonHasTheChoice) {
  const Outcome run = run_dualpipe(std::string(kAuto) + "--format json --search-evaluations 200000");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, IsEmpty());  // Progress is for terminals.
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["schedule"], "auto");
  EXPECT_EQ(json["placement"], "v");
  EXPECT_EQ(json["makespan"], 63);
  EXPECT_EQ(json["best_named"], "dualpipev");
  EXPECT_EQ(json["best_named_makespan"], 66);
  EXPECT_EQ(json["bound"], 63);
  EXPECT_GT(json["evaluations"], 0);
  EXPECT_LE(json["evaluations"], 200'010);
  EXPECT_THAT(std::string(json["reason"]), HasSubstr("the best named schedule, dualpipev, takes 66"));
  for (const int peak : json["peak_activations"]) EXPECT_LE(peak, 9);
}

TEST(Auto, WritesAFileThatIsASchedule) {
  const TemporaryFolder folder;
  const std::string path = folder.file("found.csv");
  ASSERT_EQ(run_dualpipe(std::string(kAuto) + "--format csv --search-evaluations 20000 -o " + path).exit_code, 0);
  EXPECT_EQ(run_dualpipe("check " + path).exit_code, 0);
  const Outcome read = run_dualpipe("plan -s " + path + " --format json");
  const Outcome again = run_dualpipe(std::string(kAuto) + "--format json --search-evaluations 20000");
  EXPECT_EQ(nlohmann::json::parse(read.out)["makespan"], nlohmann::json::parse(again.out)["makespan"]);
}

TEST(Auto, ReadsTheBytesOfACostFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("cost.json");
  nlohmann::json stage = {{"forward", 1},           {"backward_input", 1},   {"backward_weight", 1},
                          {"parameter_bytes", 1e9}, {"gradient_bytes", 1e9}, {"optimizer_bytes", 2e9},
                          {"activation_bytes", 1e9}};
  nlohmann::json file = {
      {"format", "dualpipe-cost"}, {"version", 1}, {"unit", "ms"}, {"stages", nlohmann::json::array()}};
  for (int i = 0; i < 8; ++i) file["stages"].push_back(stage);
  std::ofstream(path) << file;
  const std::string plan = "plan -s auto -P 4 -M 8 --search-evaluations 2000 --format json --cost " + path;
  const Outcome run = run_dualpipe(plan + " --memory-limit-gb 16");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto report = nlohmann::json::parse(run.out);
  ASSERT_FALSE(report.at("memory").empty());
  for (const auto& rank : report.at("memory")) EXPECT_LE(rank["total"], 16e9);
  const Outcome small = run_dualpipe(plan + " --memory-limit-gb 9");
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_EQ(small.err,
            "dualpipe: [auto] no order fits memory_limit_gb = 9 on 4 ranks; the least that would: memory_limit_gb = 10 "
            "for loop, memory_limit_gb = 10 for loop with 2 chunks per rank, memory_limit_gb = 10 for v, "
            "memory_limit_gb = 20 for bidirectional\n");
}

TEST(Auto, DrawsToo) {
  const Outcome run = run_dualpipe("draw -s auto -P 2 -M 4 --search-evaluations 1000 --placement bidirectional");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("auto, 2 ranks, 4 micro-batches"));
}

TEST(Auto, GridSaysWhy) {
  const Outcome run = run_dualpipe("plan -s auto -P 2 -M 4 --search-evaluations 1000");
  EXPECT_THAT(run.out, HasSubstr("\nwhy               placement "));
}

TEST(Auto, SaysWhatIsWrong) {
  const struct {
    const char* options;
    const char* message;
  } cases[] = {
      {"plan -s dualpipe -P 4 -M 8 --placement v",
       "[plan] --placement needs --schedule auto, which searches, got --schedule dualpipe, which is as it is"},
      {"plan -P 4 -M 8 --placement v", "[plan] --placement needs --schedule auto, which searches, got no --schedule"},
      {"plan -s atuo -P 4 -M 8",
       "[--schedule] must be one of 1f1b, dualpipe, dualpipev, interleaved_1f1b, zb1p, auto, all or a .csv file, got "
       "\"atuo\"; did you mean auto?"},
      {"plan -s 1f1b -P 4 -M 8 --cost c4.jsn",
       "[cost] must be numbers, such as forward=1,overlapped=3, or a cost file, which ends in .json or exists, got "
       "'c4.jsn'"},
      {"plan -s 1f1b -P 4 -M 8 --cost forward=1e308", "[cost] forward must be at most 1e15, such as 1, got '1e308'"},
      {"draw -s 1f1b -P 4 -M 8 --max-activations 4",
       "[draw] --max-activations needs --schedule auto, which searches, got --schedule 1f1b, which is as it is"},
      {"plan -s auto -P 4 -M 8 --placement w",
       "[--placement] the placement must be loop, v or bidirectional, got \"w\""},
      {"plan -s auto -P 4",
       "[plan] --num-microbatches is required with --schedule auto, for example --num-microbatches "
       "16"},
      {"plan -s auto -P 4 -M 8 --memory-limit-gb 80",
       "[auto] memory_limit_gb needs the bytes of each stage, which a cost file of 'dualpipe profile' holds, got none; "
       "max_activations needs no bytes"},
      {"plan -s auto -P 4 -M 8 --placement v --max-activations 1",
       "[auto] no order fits max_activations = 1 on 4 ranks; the least that would: max_activations = 2 for v"},
      {"plan -s auto -P 4 -M 8 --search-evaluations -1", "[auto] search evaluations must be at least 0, got -1"},
      {"plan -s auto -P 4 -M 8 --time-budget 0",
       "[auto] the time budget must be a finite number above 0, such as 20, got 0"},
  };
  for (const auto& test : cases) {
    const Outcome run = run_dualpipe(test.options);
    EXPECT_EQ(run.exit_code, 2) << test.options;
    EXPECT_EQ(run.err, std::string("dualpipe: ") + test.message + "\n") << test.options;
  }
}

}  // namespace
}  // namespace dualpipe
