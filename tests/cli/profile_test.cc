// profile, with hosts that take as long as a cost file says (timed_host.py), and plan with the file that comes of it.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

json costs_of(int stages) {
  json costs{{"format", "dualpipe-cost"}, {"version", 1}, {"unit", "ms"}, {"latency", 0.5}, {"stages", json::array()}};
  for (int stage = 0; stage < stages; ++stage) {
    const double size = 2.0 + stage;
    costs["stages"].push_back({{"forward", size},
                               {"backward_input", 1.25 * size},
                               {"backward_weight", 0.75 * size},
                               {"overlapped", 2.5 * size}});
  }
  return costs;
}

class Profile : public testing::Test {
 protected:
  std::string cost_file() const { return folder_.file("out/cost.json"); }

  // On two ranks.
  Outcome run(const json& costs, const std::string& failing = "", const std::string& arguments = "") const {
    const std::string truth = folder_.write("truth.json", costs.dump());
    return run_dualpipe("profile --command 'python3 tests/cli/timed_host.py " DUALPIPE_PROGRAM " " + truth + " 2 8 " +
                        failing + "' -o " + cost_file() + " " + arguments);
  }

  json written() const { return json::parse(read_text(cost_file())); }

  TemporaryFolder folder_;
};

void expect_near(const json& found, const json& given) {
  ASSERT_EQ(found["stages"].size(), given["stages"].size());
  for (std::size_t stage = 0; stage < given["stages"].size(); ++stage) {
    for (const char* key : {"forward", "backward_input", "backward_weight", "overlapped"}) {
      EXPECT_NEAR(found["stages"][stage][key], given["stages"][stage][key], 2e-3) << stage << " " << key;
    }
  }
  EXPECT_NEAR(found["latency"], given["latency"], 2e-3);
}

TEST_F(Profile, FindsTheCostsOfTheHost) {
  const json costs = costs_of(4);
  const Outcome run = this->run(costs);
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  expect_near(written(), costs);
  EXPECT_NEAR(written()["step_overhead"], 5, 1e-2);
  EXPECT_EQ(written()["stages"][0]["parameter_bytes"], 1000);
  EXPECT_EQ(written()["stages"][0]["activation_bytes"], 64);
  EXPECT_THAT(written()["source"].get<std::string>(), StartsWith("dualpipev of python3 tests/cli/timed_host.py "));
  EXPECT_FALSE(written().contains("layers"));
  EXPECT_THAT(run.out,
              StartsWith("dualpipev: running\n\nstage             F        I        W      F&B    gain  "
                         "all-to-all  parameters  activations\n"
                         "0             2.000    2.500    1.500    5.000    -58%           -        1 kB       "
                         "  64 B\n"));
  EXPECT_THAT(run.out, HasSubstr("latency        0.500 ms from one rank to the next\n"));
  EXPECT_THAT(run.out, HasSubstr("balance        stage 3 takes 1.43x of the mean stage\n"));
  EXPECT_THAT(run.out, HasSubstr(" measured (+0.0%)\n"));
  EXPECT_THAT(run.out,
              EndsWith("\nwritten to " + cost_file() + "; next: dualpipe plan --cost " + cost_file() + " -P 2 -M 8\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_.file("out/cost.runs/dualpipev/timeline_rank1.jsonl")));
}

TEST_F(Profile, TakesTheNextScheduleWhereOneFails) {
  const json costs = costs_of(2);
  const Outcome run = this->run(costs, "dualpipev");
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  expect_near(written(), costs);
  EXPECT_THAT(run.out, StartsWith("dualpipev: running\ndualpipe: running\n"));
  EXPECT_THAT(run.err,
              StartsWith("dualpipev: [dualpipev] exit code 1: error: dualpipev is too much\n--- the last lines "
                         "of "));
}

TEST_F(Profile, SaysWhatAScheduleDidNotShow) {
  const Outcome run = this->run(costs_of(2), "", "--schedules 1f1b");
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("\nstages 0 and 1 ran B alone: divided evenly into I and W\n"
                                 "stages 0 and 1 ran no pair: F&B is F + B, nothing is gained\n"));
  EXPECT_NEAR(written()["stages"][1]["backward_input"], 3, 2e-3);
}

TEST_F(Profile, WritesNothingWhereNothingRuns) {
  const Outcome run = this->run(costs_of(2), "zb1p 1f1b", "--schedules zb1p,1f1b");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, EndsWith("dualpipe: [profile] one of zb1p, 1f1b must run, got none; nothing was written\n"));
  EXPECT_FALSE(std::filesystem::exists(cost_file()));
}

TEST_F(Profile, ThePlanUnderItsFileIsTheRun) {
  ASSERT_EQ(run(costs_of(4)).exit_code, 0);
  const auto makespan = [&](const std::string& costs) {
    const Outcome plan = run_dualpipe("plan -s dualpipev -P 2 -M 8 --format json --cost " + costs);
    return json::parse(plan.out)["makespan"].get<double>();
  };
  EXPECT_NEAR(makespan(cost_file()), makespan(folder_.file("truth.json")), 0.1);
}

TEST(ProfileMistakes, AreToldBeforeAnythingRuns) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  const struct {
    std::string arguments;
    std::string message;
  } cases[] = {
      {"",
       "[profile] either --config FILE or --command 'PROGRAM ...' must say what to run, got neither; for example "
       "--config configs/gpt_moe_tiny.yaml"},
      {"--command ''",
       "[profile] either --config FILE or --command 'PROGRAM ...' must say what to run, got an empty command; for "
       "example --config configs/gpt_moe_tiny.yaml"},
      {"--command true --config configs/gpt_tiny.yaml",
       "[profile] either --config FILE or --command 'PROGRAM ...' must say what to run, got both; for example --config "
       "configs/gpt_moe_tiny.yaml"},
      {"--command true --nproc 2",
       "[profile] --nproc belongs to --config; what --command starts must have it in its own command line"},
      {"--command true --schedules ..",
       "[profile] --schedules must be names or .csv files, got '..'; for example --schedules dualpipev,zb1p"},
      {"--command true --schedules dualpipev,a/.",
       "[profile] --schedules must be names or .csv files, got 'a/.'; for example --schedules dualpipev,zb1p"},
      {"--command true --schedules a/",
       "[profile] --schedules must be names or .csv files, got 'a/'; for example --schedules dualpipev,zb1p"},
      {"--command true -o " + file + ".runs", "[profile] -o must be a file that does not end in / or .runs, got '" +
                                                  file + ".runs'; for example -o output/profile/cost.json"},
      {"--command true -o " + folder.file("."), "[profile] -o must be a file, got the folder '" + folder.file(".") +
                                                    "'; for example -o " + folder.file(".") + "/cost.json"},
      {"--command true -o " + file + "/cost.json",
       "[profile] cannot write to '" + file + "': Not a directory; choose another file with -o"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome run = run_dualpipe("profile " + arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.err, "dualpipe: " + message + "\n") << arguments;
    EXPECT_THAT(run.out, IsEmpty()) << arguments;
  }
}

TEST_F(Profile, LeavesAFolderThatItDidNotMake) {
  std::filesystem::create_directories(folder_.file("out/cost.runs/dualpipev"));
  const std::string mine = folder_.write("out/cost.runs/dualpipev/notes.txt", "mine");
  const std::string runs = folder_.file("out/cost.runs");
  const Outcome run = this->run(costs_of(2));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err, "dualpipe: [profile] '" + runs +
                         "' must be empty, or made by profile, which replaces the runs in it, got a folder with other "
                         "files; choose another file with -o\n");
  EXPECT_EQ(read_text(mine), "mine");
}

// --- plan and draw with a cost file

// Four stages, of which the first has an embedding.
json planned_costs() {
  json costs = costs_of(4);
  costs["step_overhead"] = 7;
  for (int stage = 0; stage < 4; ++stage) {
    costs["stages"][stage]["parameter_bytes"] = stage == 0 ? 3e9 : 1e9;
    costs["stages"][stage]["activation_bytes"] = 1e8;
  }
  return costs;
}

json plan_json(const std::string& arguments) {
  const Outcome run = run_dualpipe("plan --format json " + arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return json::parse(run.out);
}

// 1F1B on 2 ranks, 2 micro-batches; stages of 2 + 3 and 4 + 5 ms each. F 5 and 9, B 10 and 18, a message 0.5.
TEST(PlanWithCostFile, SumsNeighboursByHand) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.json", planned_costs().dump());
  const json plan = plan_json("-s 1f1b -P 2 -M 2 --cost " + file);
  EXPECT_EQ(plan["makespan"], 5 + 0.5 + 9 + 18 + 9 + 18 + 0.5 + 10);
  EXPECT_EQ(plan["iteration"], plan["makespan"].get<double>() + 7);
  EXPECT_EQ(plan["memory"][0]["parameters"], 4e9);
  EXPECT_EQ(plan["memory"][0]["gradients"], 4e9);
  EXPECT_EQ(plan["memory"][0]["optimizer"], 8e9);
  EXPECT_EQ(plan["memory"][0]["activations"], 2 * 2e8);
  EXPECT_EQ(plan["memory"][1]["total"], 2e9 + 2e9 + 4e9 + 2e8);
}

TEST(PlanWithCostFile, ListsEveryScheduleTheFastestFirst) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.json", planned_costs().dump());
  const json plan = plan_json("-P 2 -M 5 --cost " + file);
  ASSERT_EQ(plan["schedules"].size(), 5u);
  double last = 0;
  for (const json& row : plan["schedules"]) {
    if (!row["refusal"].is_null()) {
      continue;
    }
    EXPECT_GE(row["iteration"], last);
    last = row["iteration"];
    const std::string name = row["schedule"];
    const json alone = plan_json("-s " + name + " -P 2 -M 5 --cost " + file);
    EXPECT_EQ(row["iteration"], alone["iteration"]) << name;
    EXPECT_EQ(row["memory"], alone["memory"]) << name;
  }
  EXPECT_EQ(
      plan["schedules"][4]["refusal"],
      "[interleaved_1f1b] num_microbatches must be a multiple of pipeline_model_parallel_size = 2, got 5; 6 works");
  EXPECT_EQ(plan_json("-s all -P 2 -M 5 --cost " + file), plan);
}

TEST(PlanWithCostFile, MarksTwiceTheParameters) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.json", planned_costs().dump());
  const Outcome run = run_dualpipe("plan -P 4 -M 8 --cost " + file);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("4 ranks, 8 micro-batches, costs of " + file +
                                  "\n\nschedule           stages  iteration ms   bubble  parameters        state  "
                                  "activations    memory\n"));
  EXPECT_THAT(run.out, HasSubstr("         2x        16 GB       500 MB   16.5 GB\n"));
  EXPECT_THAT(run.out, HasSubstr("\ndualpipe: every parameter on two ranks.\n"
                                 "each of the 4 stages in " +
                                 file + " is divided evenly in 2.\n"));
}

// `dualpipe claims` says the same of one model and one batch.
TEST(PlanTable, DividesOneModelDifferently) {
  const Outcome run = run_dualpipe("plan -s all -P 8 -M 16 --cost overlapped=2.25");
  EXPECT_EQ(
      run.out,
      "8 ranks, 16 micro-batches, costs of a stage where the model is cut into 8\n\n"
      "schedule           stages     iteration   bubble  parameters        state  activations    memory\n"
      "dualpipe                8          46.5     6.9%          2x            -            9         -\n"
      "dualpipev              16         46.75     7.3%          1x            -          8.5         -\n"
      "zb1p                    8            55    12.7%          1x            -            8         -\n"
      "interleaved_1f1b       16          58.5    17.9%          1x            -         11.5         -\n"
      "1f1b                    8            69    30.4%          1x            -            8         -\n\n"
      "bubble: mean idle share of the ranks. activations: the most micro-batches that a rank holds, each in 1/8 of\n"
      "the model.\ndualpipe: every parameter on two ranks.\n");
}

TEST(PlanWithCostFile, FailsWhereNoScheduleRuns) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.json", planned_costs().dump());
  EXPECT_EQ(run_dualpipe("plan -P 3 -M 6 --cost " + file).exit_code, 2);
  EXPECT_EQ(run_dualpipe("plan -P 0 -M 6 --cost " + file).err,
            "dualpipe: [plan] pipeline_model_parallel_size must be at least 1, got 0\n");
  EXPECT_EQ(plan_json("-s dualpipev -P 4 -M 8 --cost " + file)["note"],
            "each of the 4 stages in " + file + " is divided evenly in 2");
}

TEST(PlanWithCostFile, AutoSaysWhichBytesAreMissing) {
  const TemporaryFolder folder;
  json costs = planned_costs();
  costs["stages"][2].erase("activation_bytes");
  const std::string file = folder.write("c.json", costs.dump());
  EXPECT_EQ(run_dualpipe("plan -s auto -P 4 -M 8 --memory-limit-gb 80 --cost " + file).err,
            "dualpipe: [" + file +
                "] stages[2].activation_bytes must be given with --memory-limit-gb, got nothing; --max-activations "
                "needs no bytes\n");
}

TEST(PlanWithCostFile, AllFormatsTakeIt) {
  const TemporaryFolder folder;
  const std::string file = folder.write("costs", planned_costs().dump());  // A file by being there.
  const std::string plan = "plan -s dualpipev -P 2 -M 4 --cost " + file;
  const Outcome grid = run_dualpipe(plan);
  EXPECT_THAT(grid.out,
              HasSubstr("costs             forward 2 to 5, backward_input 2.5 to 6.25, backward_weight 1.5 to "
                        "3.75 (so B = 4 to 10), overlapped 5 to 12.5, latency 0.5\n"));
  EXPECT_THAT(grid.out, HasSubstr(" ms\n"));
  EXPECT_THAT(grid.out, HasSubstr("memory            16.5 GB on the fullest rank: parameters 4 GB, gradients 4 GB, "
                                  "optimizer 8 GB, activations "));
  EXPECT_THAT(run_dualpipe(plan + " --format csv").out, StartsWith("0F0,"));
  EXPECT_EQ(json::parse(run_dualpipe(plan + " --format trace").out)["traceEvents"][1]["dur"], 2000);
  EXPECT_THAT(run_dualpipe("draw -s dualpipev -P 2 -M 4 --cost " + file).out, HasSubstr(" ms"));
}

TEST(PlanWithCostFile, RefusesMistakes) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.json", planned_costs().dump());
  const std::string broken = folder.write("broken.json", R"({"format":"dualpipe-cost","version":1,"unit":"ms"})");
  const struct {
    std::string arguments;
    std::string message;
  } cases[] = {
      {"plan -s 1f1b -P 3 -M 3 --cost " + file,
       "[" + file +
           "] the number of stages must divide the file's 4 or be a multiple of it, got 3; for example 1 or 4"},
      {"plan -P 2 -M 4 --cost " + broken,
       "[" + broken + "] stages must be a list of objects [{...}, ...], got nothing"},
      {"draw -s 1f1b -P 2 -M 4 --cost " + broken,
       "[" + broken + "] stages must be a list of objects [{...}, ...], got nothing"},
      {"plan -P 2 -M 4 --cost missing.json",
       "[missing.json] must be a cost file that can be read, as 'dualpipe profile -o missing.json' writes it"},
      {"plan -P 2 --cost " + file,
       "[plan] --num-microbatches is required with --schedule all, for example --num-microbatches 16"},
      {"plan -P 2 -M 4 --format csv --cost " + file,
       "[plan] --schedule all needs --format grid or json, got --format csv; a file takes one schedule, for example "
       "--schedule dualpipe"},
      {"draw -P 2 -M 4 --cost " + file, "[draw] --schedule is required, for example --schedule dualpipe"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome run = run_dualpipe(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(run.err, "dualpipe: " + message + "\n") << arguments;
  }
}

}  // namespace
}  // namespace dualpipe
