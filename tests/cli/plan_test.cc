#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kDualpipe = "plan --schedule dualpipe --pipeline-model-parallel-size 8 --num-microbatches 20 ";

TEST(Plan, JsonHasTheFigures) {
  const Outcome run = run_dualpipe(std::string(kDualpipe) + "--format json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["schedule"], "dualpipe");
  EXPECT_EQ(json["makespan"], 66);
  EXPECT_EQ(json["idle"], std::vector<double>(8, 6));
  EXPECT_EQ(json["bubble_closed_form"], 6);
  EXPECT_EQ(json["peak_activations"], std::vector<int>(8, 9));
  EXPECT_EQ(json["least_slots"], 2);
  EXPECT_EQ(json.size(), 9u);
}

TEST(Plan, CostsChangeTheFigures) {
  const Outcome run =
      run_dualpipe(std::string(kDualpipe) +
                   "--cost forward=1,backward_input=1,backward_weight=1,overlapped=2.25,latency=0 --format json");
  EXPECT_EQ(nlohmann::json::parse(run.out)["makespan"], 55.5);
}

TEST(Plan, TakesTheOtherSpellings) {
  const std::string json = run_dualpipe(std::string(kDualpipe) + "--format json").out;
  EXPECT_EQ(run_dualpipe("plan --schedule dualpipe --pipeline-parallel-size 8 --num-microbatches 20 --format json").out,
            json);
  EXPECT_EQ(run_dualpipe("plan -s dualpipe -P 8 -M 20 --format json").out, json);
}

TEST(Plan, CsvIsTheGolden) {
  EXPECT_EQ(run_dualpipe(std::string(kDualpipe) + "--format csv").out, read_text("tests/golden/dualpipe_r8_m20.csv"));
}

TEST(Plan, AFileIsAScheduleToo) {
  const Outcome run = run_dualpipe("plan --schedule tests/golden/dualpipe_r8_m20.csv --format json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["makespan"], 66);
  EXPECT_TRUE(json["bubble_closed_form"].is_null());
  const Outcome other = run_dualpipe("plan --schedule tests/golden/dualpipe_r8_m20.csv -P 4");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_EQ(other.err,
            "dualpipe: [plan] --pipeline-model-parallel-size must be the file's = 8, got 4; it can be left out\n");
}

TEST(Plan, LoweredCsvHasCommunication) {
  const Outcome run = run_dualpipe("plan -s 1f1b -P 2 -M 2 --format csv --lowered");
  EXPECT_THAT(run.out, HasSubstr("0SEND_F0"));
  EXPECT_THAT(run.out, HasSubstr("1RECV_F0"));
  EXPECT_THAT(run.out, HasSubstr("1REDUCE_GRAD"));
}

TEST(Plan, TorchsFormWaitsForEverySend) {
  const Outcome run = run_dualpipe("plan -s dualpipev -P 2 -M 4 --format csv --for-torch");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("0SEND_F0"));
  EXPECT_EQ(run_dualpipe("plan -s dualpipe -P 2 -M 4 --format csv --for-torch").exit_code, 2);
}

TEST(Plan, WritesFilesWhole) {
  const TemporaryFolder folder;
  const std::string path = folder.file("plan.csv");
  const Outcome run = run_dualpipe(std::string(kDualpipe) + "--format csv -o " + path);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_EQ(read_text(path), read_text("tests/golden/dualpipe_r8_m20.csv"));
}

TEST(Plan, ColoursOnlyWhereAskedOrOnATerminal) {
  EXPECT_THAT(run_dualpipe(kDualpipe).out, Not(HasSubstr("\033[")));
  EXPECT_THAT(run_dualpipe(std::string(kDualpipe) + "--colour always").out, HasSubstr("\033["));
  EXPECT_THAT(run_dualpipe(std::string(kDualpipe) + "--colour never").out, Not(HasSubstr("\033[")));
}

struct BadCall {
  const char* arguments;
  const char* message;
};

TEST(Plan, RefusesMistakesWithOneMessage) {
  const BadCall calls[] = {
      // Schedules and their rules.
      {"plan --schedule dualpip -P 4 -M 8", "got \"dualpip\"; did you mean dualpipe?"},
      {"plan --schedule dualpip", "got \"dualpip\"; did you mean dualpipe?"},
      {"plan --schedule dualpipe -P 0 -M 8", "got 0"},
      {"plan --schedule dualpipe -P 3 -M 8", "got 3"},
      {"plan --schedule dualpipe -P 4 -M 9", "got 9"},
      {"plan --schedule dualpipe -P 4 -M 6", "got 6"},
      {"plan --schedule dualpipe -P -4 -M 8", "got -4"},
      {"plan --schedule 1f1b -P 4 -M 0", "got 0"},
      {"plan --schedule interleaved_1f1b -P 4 -M 6", "got 6"},
      {"plan --schedule missing.csv", "missing.csv"},
      {"plan --schedule dualpipe -P 4", "--num-microbatches is required with --schedule dualpipe"},
      {"plan --schedule dualpipe -M 4", "--pipeline-model-parallel-size is required with --schedule dualpipe"},
      // Options.
      {"plan", "--schedule is required"},
      {"plan --schedule dualpipe -P four -M 8", "four"},
      {"plan --schedule dualpipe -P 4 -M 8 --format xml", "xml"},
      {"plan --schedule dualpipe -P 4 -M 8 --colour pink", "pink"},
      {"plan --schedule dualpipe -P 4 -M 8 --frobnicate", "--frobnicate"},
      {"plan --schedule dualpipe -P 4 -M 8 --lowered", "[plan] --lowered needs --format csv, got --format grid"},
      {"", "subcommand is required"},
      // Costs.
      {"plan -s dualpipe -P 4 -M 8 --cost foward=1", "[cost] unknown key 'foward': did you mean 'forward'?"},
      {"plan -s dualpipe -P 4 -M 8 --cost forward=-1", "[cost] forward must be a finite number of at least 0"},
      {"plan -s dualpipe -P 4 -M 8 --cost latency=nan", "[cost] latency must be a finite number of at least 0"},
      // Output.
      {"plan -s dualpipe -P 4 -M 8 -o /nonexistent/plan.txt",
       "[output] cannot write '/nonexistent/plan.txt': No such file or directory"},
      {"plan -s dualpipe -P 4 -M 8 -o /dev/full", "[output] cannot write '/dev/full': No space left on device"},
  };
  for (const auto& [arguments, message] : calls) {
    const Outcome run = run_dualpipe(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
    EXPECT_THAT(run.err, testing::StartsWith("dualpipe: ")) << arguments;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << arguments << "\n" << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << arguments;
  }
}

TEST(Plan, ExplainsAFileThatCannotRun) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.csv", "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  const Outcome run = run_dualpipe("plan --schedule " + path);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, testing::StartsWith("deadlock at rank 0, column 1: "));
}

TEST(FieldReport40, ThePlanStatesTheMemoryBound) {
  const Outcome run = run_dualpipe("plan --schedule dualpipe -P 4 -M 16");
  EXPECT_THAT(run.out, HasSubstr("peak activations  5 on every rank; never above P+1 = 5\n"));
}

TEST(FieldReport77, ThePlanPrintsTheTimesAndTheBubbleFromThem) {
  const Outcome run =
      run_dualpipe(std::string(kDualpipe) + "--cost forward=1,backward_input=1,backward_weight=1,overlapped=3");
  EXPECT_THAT(run.out, HasSubstr("costs             forward 1, backward_input 1, backward_weight 1 (so B = 2), "
                                 "overlapped 3, latency 0\n"));
  EXPECT_THAT(run.out, HasSubstr("makespan          66\n"));
  EXPECT_THAT(run.out, HasSubstr("idle              6 on every rank; 9.1% of the makespan on the worst\n"));
}

TEST(FieldReport79, ThePlanDefinesB) {
  const Outcome run = run_dualpipe("plan --schedule zb1p -P 4 -M 8");
  EXPECT_THAT(run.out, HasSubstr("closed form       (P-1)(F+B-2W) = 3 idle on the worst rank; "
                                 "B = I + W is the full backward\n"));
  EXPECT_THAT(run.out, HasSubstr("idle              3 on every rank;"));
}

TEST(FieldReport80, EveryShapeIsDrawn) {
  for (const char* name : {"1f1b", "zb1p"}) {
    for (const int ranks : {1, 2, 4}) {
      for (const int num_microbatches : {1, 64}) {
        const std::string shape =
            std::string(name) + " -P " + std::to_string(ranks) + " -M " + std::to_string(num_microbatches);
        const Outcome run = run_dualpipe("plan --schedule " + shape);
        EXPECT_EQ(run.exit_code, 0) << shape;
        EXPECT_THAT(run.out, HasSubstr("rank " + std::to_string(ranks - 1) + " ")) << shape;
        EXPECT_THAT(run.out, HasSubstr("|0F" + std::to_string(num_microbatches - 1))) << shape;
      }
    }
  }
}

}  // namespace
}  // namespace dualpipe
