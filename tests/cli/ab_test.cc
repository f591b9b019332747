// ab, with hosts that write what a table says (fake_host.py).
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Ten iterations, the last five of which the tests below reckon with.
json usual_plan(double ms) {
  json plan{{"ms", json::array()}, {"losses", json::array()}, {"grad_norms", json::array()}};
  for (int i = 0; i < 10; ++i) {
    plan["ms"].push_back(i < 5 ? 1000 : ms + i - 7);
    plan["losses"].push_back(5 - 0.1 * i);
    plan["grad_norms"].push_back(2 + 0.1 * i);
  }
  return plan;
}

class Ab : public testing::Test {
 protected:
  std::string output() const { return folder_.file("out"); }

  Outcome run(const json& plans, const std::string& arguments) const {
    const std::string plan = folder_.write("plan.json", plans.dump());
    return run_dualpipe("ab --command 'python3 tests/cli/fake_host.py " + plan + "' -o '" + output() + "' --warmup 5 " +
                        arguments);
  }

  json comparison() const { return json::parse(read_text(output() + "/comparison.json")); }

  TemporaryFolder folder_;
};

TEST_F(Ab, ComparesAndWritesWhatItSays) {
  json twice = usual_plan(50);
  twice["copies"] = 2;
  const Outcome run = this->run({{"builtin_1f1b", usual_plan(100)}, {"dualpipe", twice}},
                                "--schedules builtin_1f1b,dualpipe --rounds 2");
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("builtin_1f1b  100.5 (99.25 - 101.8)"));
  EXPECT_THAT(run.out, HasSubstr("dualpipe      50.50 (49.25 - 51.75)"));
  EXPECT_THAT(run.out, HasSubstr("dualpipe holds twice the parameters: every stage lives on two ranks. "
                                 "One copy: builtin_1f1b.\n"));
  EXPECT_THAT(run.out, HasSubstr("lacks interleaved_1f1b (1F1B with as many chunks per rank), dualpipev (as many "
                                 "parameters per rank as 1F1B).\n"));
  EXPECT_THAT(run.out,
              EndsWith("\nreport " + output() + "/report.html  figures " + output() + "/comparison.json  Perfetto " +
                       output() + "/trace.json  logs " + output() + "/runs\n"));
  for (const char* file : {"report.html", "trace.json", "runs/dualpipe/round2/metrics.jsonl"})
    EXPECT_TRUE(std::filesystem::exists(output() + "/" + file)) << file;
  EXPECT_EQ(read_text(output() + "/runs/dualpipe/round1/output.log"), "training with dualpipe\n");
}

TEST_F(Ab, WritesItsFiguresAsJson) {
  json twice = usual_plan(50);
  twice["copies"] = 2;
  ASSERT_EQ(
      run({{"builtin_1f1b", usual_plan(100)}, {"dualpipe", twice}}, "--schedules builtin_1f1b,dualpipe --rounds 2")
          .exit_code,
      0);
  const json result = comparison();
  EXPECT_EQ(result["format"], "dualpipe-comparison");
  EXPECT_EQ(result["version"], 1);
  EXPECT_EQ(result["iterations"], 10);
  EXPECT_EQ(result["rounds"], 2);
  EXPECT_EQ(result["baseline"], "builtin_1f1b");
  EXPECT_THAT(result["command"].get<std::string>(),
              HasSubstr("dualpipe ab --command 'python3 tests/cli/fake_host.py "));
  const json& run = result["runs"][1];
  EXPECT_EQ(run["schedule"], "dualpipe");
  EXPECT_TRUE(run["failure"].is_null());
  EXPECT_EQ(run["ms"]["median"], 50.5);
  EXPECT_EQ(run["ms"]["low"], 49.25);
  EXPECT_EQ(run["ms"]["high"], 51.75);
  EXPECT_NEAR(run["speedup"]["value"].get<double>(), std::sqrt(100.0 / 50 * 101 / 51), 1e-12);
  EXPECT_TRUE(run["speedup"]["low"].is_null());
  // 6 of 16 units of two ranks are spent in actions; each rank waits a tenth of a unit for an exchange.
  EXPECT_NEAR(run["bubble"].get<double>(), 10.0 / 16, 1e-6);
  EXPECT_NEAR(run["utilization"].get<double>(), 6.0 / 16 - 0.1 / 8, 1e-6);
  EXPECT_NEAR(run["exposed_ms"].get<double>(), 51.5 / 80, 1e-6);
  EXPECT_NEAR(run["pipeline_ms"].get<double>(), 51.5, 1e-3);
  EXPECT_NEAR(run["simulated_ms"].get<double>(), 51.5, 1.5);
  EXPECT_EQ(run["peak_activations"], 1);
  EXPECT_EQ(run["peak_activation_bytes"], 4096);
  EXPECT_EQ(run["parameter_bytes"], 2000000);
  EXPECT_EQ(run["optimizer_bytes"], 2000000);
  EXPECT_EQ(run["parameter_copies"], 2);
  EXPECT_EQ(run["loss_difference"], 0);
  EXPECT_EQ(run["losses"].size(), 10u);
  EXPECT_EQ(run["losses"][9], 5 - 0.1 * 9);
  const json& rank = run["measured"]["ranks"][1];
  EXPECT_EQ(rank["rank"], 1);
  EXPECT_EQ(rank["spans"][1][0], "1B0");
  EXPECT_EQ(rank["phases"][0][0], "1F0 0.dispatch");
  EXPECT_EQ(rank["memory"][1][1], 4096);
  EXPECT_EQ(run["simulated"]["ranks"][0]["spans"].size(), 2u);
}

// What Perfetto and Chrome ask of it: names for processes and threads, and events of a thread one after the other.
TEST_F(Ab, WritesATrace) {
  ASSERT_EQ(run({{"any", usual_plan(100)}}, "--schedules a,b --rounds 1").exit_code, 0);
  const json trace = json::parse(read_text(output() + "/trace.json"));
  std::vector<std::string> processes;
  std::map<int, std::string> threads;
  std::map<int, double> reached;
  int actions = 0;
  for (const json& event : trace["traceEvents"]) {
    const int thread = event["tid"];
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["name"] == "thread_name") {
      EXPECT_TRUE(threads.emplace(thread, event["args"]["name"]).second) << "two threads with one number";
    }
    if (event["ph"] != "X") continue;
    ++actions;
    EXPECT_TRUE(threads.contains(thread));
    EXPECT_GE(event["ts"].get<double>(), reached[thread]);
    EXPECT_GT(event["dur"].get<double>(), 0);
    reached[thread] = event["ts"].get<double>() + event["dur"].get<double>() - 1e-6;
  }
  EXPECT_THAT(processes, ElementsAre("a, measured", "a, simulated", "b, measured", "b, simulated"));
  EXPECT_EQ(threads.size(), 2u * (2 * 2 + 2));  // A rank that is measured has exchanges beside.
  EXPECT_EQ(actions, 2 * (4 + 2 + 4));
}

TEST_F(Ab, RunsTheSchedulesInTurns) {
  const Outcome run = this->run({{"any", usual_plan(10)}}, "--schedules a,b,c --rounds 3");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::string> order;
  for (std::size_t at = run.err.find("round "); at != std::string::npos; at = run.err.find("round ", at + 1))
    order.push_back(run.err.substr(at + 6, 1) + run.err.substr(at + 10, 1));
  EXPECT_THAT(order, ElementsAre("1a", "1b", "1c", "2b", "2c", "2a", "3c", "3a", "3b"));
}

TEST_F(Ab, FinishesTheOthersWhereOneFails) {
  json broken = usual_plan(50);
  broken["fail"] = "first line\nValueError: num_layers must be a multiple of 3\nlast line";
  const Outcome run =
      this->run({{"any", usual_plan(100)}, {"dualpipe", broken}}, "--schedules builtin_1f1b,dualpipe,zb1p --rounds 2");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("FAILED dualpipe: exit code 3: ValueError: num_layers must be a multiple of 3\n"));
  EXPECT_THAT(run.out, HasSubstr("zb1p          100.5"));
  EXPECT_THAT(run.err, HasSubstr("/dualpipe/round1/output.log\ntraining with dualpipe\nfirst line\n"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/dualpipe/round2"));
  const json result = comparison()["runs"][1];
  EXPECT_EQ(result["failure"], "exit code 3: ValueError: num_layers must be a multiple of 3");
  EXPECT_TRUE(result["ms"].is_null());
  EXPECT_TRUE(result["measured"].is_null());
}

TEST_F(Ab, NeedsNoBaselineToShowTheOthers) {
  const Outcome run = this->run({{"any", usual_plan(100)}, {"builtin_1f1b", {{"fail", "no"}}}},
                                "--schedules builtin_1f1b,zb1p --rounds 1");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(
      run.out,
      HasSubstr(
          "There are no speed-ups, since the baseline, builtin_1f1b, failed. Differences are those from zb1p.\n"));
  EXPECT_TRUE(comparison()["runs"][1]["speedup"].is_null());
  EXPECT_EQ(comparison()["runs"][1]["ms"]["median"], 100);
}

TEST_F(Ab, WritesAReportWhereAllFailed) {
  const Outcome run = this->run({{"any", {{"fail", ""}}}}, "--schedules a,b --rounds 2");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out,
              HasSubstr(": no schedule finished\nFAILED a: exit code 3: training with a\nFAILED b: exit code 3"));
  EXPECT_EQ(comparison()["iterations"], 0);
}

TEST_F(Ab, StopsWhereTheFirstLossDiffers) {
  json other = usual_plan(50);
  other["losses"][0] = 5 * (1 + 2e-5);
  const Outcome run =
      this->run({{"any", usual_plan(100)}, {"dualpipe", other}}, "--schedules builtin_1f1b,dualpipe --rounds 2");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("DIFFERS dualpipe: the first loss differs from builtin_1f1b's by 2.00e-05, more than "
                                 "--tolerance-first = 1e-05\n"));
  EXPECT_THAT(run.out, HasSubstr("The schedules do not train alike, so it stopped in round 1: "));
  EXPECT_THAT(run.out, HasSubstr("dualpipe      50.00"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/dualpipe/round2"));
}

TEST_F(Ab, StopsWhereTheFirstNormOrTheCurveDiffers) {
  json norm = usual_plan(50);
  norm["grad_norms"][0] = 2 * (1 - 3e-5);
  json curve = usual_plan(50);
  curve["losses"][7] = (5 - 0.1 * 7) * 1.002;
  json diverged = usual_plan(50);
  diverged["losses"][8] = nullptr;
  const json plans = {{"any", usual_plan(100)}, {"a", norm}, {"b", curve}, {"c", diverged}};
  const auto run_beside = [&](const std::string& schedule) {
    const Outcome run = this->run(plans, "--schedules builtin_1f1b," + schedule + " --rounds 1 --force");
    EXPECT_EQ(run.exit_code, 1);
    return run.out;
  };
  EXPECT_THAT(run_beside("a"), HasSubstr("DIFFERS a: the first gradient norm differs from builtin_1f1b's by 3.00e-05"));
  EXPECT_THAT(run_beside("b"), HasSubstr("DIFFERS b: the loss curve differs from builtin_1f1b's by 2.00e-03, more than "
                                         "--tolerance-curve = 0.001\n"));
  EXPECT_THAT(run_beside("c"), HasSubstr("DIFFERS c: the loss curve differs from builtin_1f1b's by inf"));
  EXPECT_TRUE(comparison()["runs"][1]["loss_difference"].is_null());
}

TEST_F(Ab, StopsWithinARound) {
  json other = usual_plan(50);
  other["losses"][0] = 6;
  const json plans = {{"any", usual_plan(100)}, {"b", other}};
  const Outcome run = this->run(plans, "--schedules a,b,c --rounds 2");
  EXPECT_THAT(run.out, HasSubstr("DIFFERS b: the first loss differs from a's"));
  EXPECT_THAT(run.out, HasSubstr("NOT RUN c: the comparison stopped before its turn\n"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/c"));
  // What came before the baseline is judged once that has run.
  const Outcome last = this->run(plans, "--schedules b,a,c --baseline a --rounds 2 --force");
  EXPECT_THAT(last.out, HasSubstr("DIFFERS b: the first loss differs from a's"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/c"));
}

// b's second run differs, and a has two.
TEST_F(Ab, ComparesTheRoundsThatBothHave) {
  const std::string change = folder_.write("host.sh",
                                           "python3 tests/cli/fake_host.py $1 || exit 1\n"
                                           "case $DUALPIPE_OUTPUT in */c/round2) "
                                           "sed -i 's/\"lm_loss\": 5.0/\"lm_loss\": 6.0/' "
                                           "$DUALPIPE_OUTPUT/metrics.jsonl;; esac\n");
  const std::string plan = folder_.write("plan.json", json{{"any", usual_plan(50)}}.dump());
  const Outcome run = run_dualpipe("ab --command 'sh " + change + " " + plan + "' -o '" + output() +
                                   "' --warmup 5 --schedules a,b,c --rounds 2");
  EXPECT_THAT(run.out, HasSubstr("DIFFERS c: the first loss differs from a's by 2.00e-01"));
  EXPECT_TRUE(std::filesystem::exists(output() + "/runs/b/round2"));
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/a/round2"));
  EXPECT_EQ(comparison()["rounds"], 2);
  EXPECT_NEAR(comparison()["runs"][1]["speedup"]["value"].get<double>(), 1, 1e-12);
}

TEST_F(Ab, DoesNotCompareNormsThatAHostDoesNotWrite) {
  json bare = usual_plan(50);
  bare["norms"] = false;
  const Outcome run = this->run({{"any", usual_plan(100)}, {"b", bare}}, "--schedules a,b --rounds 1");
  EXPECT_EQ(run.exit_code, 0) << run.out;
  EXPECT_TRUE(comparison()["runs"][1]["grad_norms"].is_null());
  EXPECT_TRUE(comparison()["runs"][1]["grad_norm_difference"].is_null());
  EXPECT_EQ(comparison()["runs"][0]["grad_norm_difference"], 0);
  EXPECT_THAT(run.out,
              HasSubstr("'-': b wrote no grad_norm into metrics.jsonl, so its gradient norms were not compared.\n"));
  json diverged = usual_plan(50);
  diverged["grad_norms"][0] = nullptr;
  const Outcome not_finite =
      this->run({{"any", usual_plan(100)}, {"b", diverged}}, "--schedules a,b --rounds 1 --force");
  EXPECT_THAT(not_finite.out, HasSubstr("DIFFERS b: the first gradient norm differs from a's by inf"));
}

TEST_F(Ab, FailsAHostThatRunsAnotherSchedule) {
  json deaf = usual_plan(50);
  deaf["ran"] = "a";
  const Outcome run = this->run({{"any", deaf}}, "--schedules a,b --rounds 1");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out,
              HasSubstr("/b/round1/timeline_rank0.jsonl:1] \"schedule\" must be DUALPIPE_SCHEDULE = \"b\", got "
                        "\"a\": DUALPIPE_SCHEDULE was not honoured by the host\n"));
  EXPECT_TRUE(comparison()["runs"][0]["failure"].is_null());
}

TEST_F(Ab, KeepsSchedulesApartThatAreFiles) {
  const Outcome run = this->run({{"any", usual_plan(50)}}, "--schedules x/y.csv,x_y.csv --rounds 1");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(read_text(output() + "/runs/x_y.csv/round1/output.log"), "training with x/y.csv\n");
  EXPECT_EQ(read_text(output() + "/runs/x_y.csv-2/round1/output.log"), "training with x_y.csv\n");
}

// A step of the host is eight units, and it runs one micro-batch on two ranks; a message takes a unit.
TEST_F(Ab, PredictsByACostFile) {
  const json stage = {{"forward", 6.25}, {"backward_input", 3.125}, {"backward_weight", 9}};
  const json costs = {{"format", "dualpipe-cost"}, {"version", 1},         {"unit", "ms"},
                      {"latency", 6.25},           {"step_overhead", 2.5}, {"stages", {stage, stage}}};
  const std::string file = folder_.write("cost.json", costs.dump());
  const Outcome run =
      this->run({{"any", usual_plan(50)}}, "--schedules builtin_1f1b,zb1p,mine --rounds 1 --cost " + file);
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("\nbuiltin_1f1b  50.00 (49.00 - 51.00)   51.75 (+3.5%)  "));
  EXPECT_THAT(run.out, HasSubstr("\nzb1p          50.00 (49.00 - 51.00)  42.75 (-14.5%)  "));
  EXPECT_THAT(run.out, HasSubstr("\nmine          50.00 (49.00 - 51.00)               -  "));
  EXPECT_THAT(run.out, HasSubstr("\n'-': what mine takes cannot be predicted: [mine] must be a schedule that the "
                                 "simulator knows, 1f1b, dualpipe, dualpipev, interleaved_1f1b, zb1p, got one of the "
                                 "host's own\n"));
  const json result = comparison();
  EXPECT_EQ(result["cost_file"], file);
  EXPECT_EQ(result["runs"][0]["predicted_ms"], 2 * 6.25 + 2 * 12.125 + 2 * 6.25 + 2.5);
  EXPECT_NEAR(result["runs"][0]["predicted_difference"].get<double>(), 0.035, 1e-12);
  EXPECT_EQ(result["runs"][1]["predicted_ms"], 2 * 6.25 + 2 * 6.25 + 2 * 3.125 + 9 + 2.5);
  EXPECT_TRUE(result["runs"][2]["predicted_ms"].is_null());
}

// ZB1P on 4 ranks with 8 micro-batches, F = I = W = 1 ms, by a host that takes exactly as long as it is simulated.
TEST_F(Ab, FieldReport79TheBubbleIsTheSimulatedIdleTime) {
  json costs = {
      {"format", "dualpipe-cost"}, {"version", 1}, {"unit", "ms"}, {"step_overhead", 5}, {"stages", json::array()}};
  for (int stage = 0; stage < 4; ++stage)
    costs["stages"].push_back({{"forward", 1}, {"backward_input", 1}, {"backward_weight", 1}});
  const std::string truth = folder_.write("truth.json", costs.dump());
  const json plan = json::parse(run_dualpipe("plan -s zb1p -P 4 -M 8 --format json --cost " + truth).out);
  EXPECT_EQ(plan["makespan"], 27);
  EXPECT_EQ(plan["idle"], json::array({3, 3, 3, 3}));  // (P-1)(F+B-2W)
  const Outcome run =
      run_dualpipe("ab --command 'python3 tests/cli/timed_host.py " DUALPIPE_PROGRAM " " + truth +
                   " 4 8' --schedules zb1p --rounds 1 --warmup 0 --cost " + truth + " -o '" + output() + "'");
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("bubble is\nthe ranks' time without an action"));
  EXPECT_THAT(run.out,
              HasSubstr("\nzb1p      32.00 (32.00 - 32.00)  32.00 (+0.0%)               1     27.00  27.00   11.1%"));
  const json figures = comparison()["runs"][0];
  EXPECT_NEAR(figures["bubble"].get<double>(), 3.0 / 27, 1e-9);
  EXPECT_NEAR(figures["utilization"].get<double>(), 24.0 / 27, 1e-9);
  EXPECT_NEAR(figures["pipeline_ms"].get<double>(), 27, 1e-6);
  EXPECT_NEAR(figures["simulated_ms"].get<double>(), 27, 1e-6);
  EXPECT_NEAR(figures["predicted_ms"].get<double>(), 32, 1e-9);
  EXPECT_NEAR(figures["predicted_difference"].get<double>(), 0, 1e-9);
}

TEST_F(Ab, TakesOtherTolerances) {
  json other = usual_plan(50);
  other["losses"][0] = 5 * (1 + 2e-5);
  EXPECT_EQ(run({{"any", usual_plan(100)}, {"dualpipe", other}},
                "--schedules builtin_1f1b,dualpipe --rounds 1 --tolerance-first 1e-4")
                .exit_code,
            0);
}

TEST_F(Ab, ShowsWhatAHostWithoutTimelinesGives) {
  json bare = usual_plan(50);
  bare["timelines"] = false;
  const Outcome run =
      this->run({{"any", usual_plan(100)}, {"dualpipe", bare}}, "--schedules builtin_1f1b,dualpipe --rounds 1");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("'-': dualpipe wrote no timeline_rank<R>.jsonl into DUALPIPE_OUTPUT; "
                                 "docs/run_files.md says what a host writes there.\n"));
  EXPECT_THAT(run.out, HasSubstr("dualpipe holds twice the parameters"));
  EXPECT_TRUE(comparison()["runs"][1]["bubble"].is_null());
  EXPECT_EQ(comparison()["runs"][1]["ms"]["median"], 50);
}

TEST_F(Ab, SaysWhereWaitingCountsAsBusy) {
  json plan = usual_plan(50);
  plan["exposed"] = false;
  const Outcome run = this->run({{"any", plan}}, "--schedules 1f1b --rounds 1");
  EXPECT_THAT(run.out, HasSubstr("1f1b wrote no exposed_seconds: waiting for an exchange counts as busy there.\n"));
  EXPECT_NEAR(comparison()["runs"][0]["utilization"].get<double>(), 6.0 / 16, 1e-6);
}

TEST_F(Ab, TellsFileAndLineOfWhatItCannotRead) {
  json cut = usual_plan(50);
  cut["append"] = {{"metrics.jsonl", "{\"iteration\":11,\"lm_l"}};
  json wrong = usual_plan(50);
  wrong["append"] = {
      {"timeline_rank1.jsonl", "{\"iteration\":11,\"began\":1,\"seconds\":1,\"spans\":[[\"9F0\",0,1]]}\n"}};
  const Outcome run = this->run({{"a", usual_plan(50)}, {"b", cut}, {"c", wrong}}, "--schedules a,b,c --rounds 1");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("/b/round1/metrics.jsonl:11] the last line is cut off"));
  EXPECT_THAT(run.out, HasSubstr("/c/round1/timeline_rank1.jsonl:5] \"spans\" must be F, B, I, W or pairs of stages "
                                 "below 2 and micro-batches below 1, got 9F0\n"));
}

TEST_F(Ab, FailsRunsThatAreTooShortOrUnequal) {
  json longer = usual_plan(50);
  for (const char* key : {"ms", "losses", "grad_norms"}) longer[key].push_back(1);
  const Outcome unequal = run({{"any", usual_plan(100)}, {"b", longer}}, "--schedules a,b --rounds 1");
  EXPECT_THAT(unequal.out, HasSubstr("FAILED b: metrics.jsonl must have those of a = 10 iterations, 1 to 10; got 11 "
                                     "iterations, 1 to 11\n"));
  const Outcome brief = run({{"any", usual_plan(100)}}, "--schedules a --rounds 1 --warmup 10 --force");
  EXPECT_EQ(brief.exit_code, 1);
  EXPECT_THAT(brief.out, HasSubstr("FAILED a: a run must have more iterations than --warmup = 10, got 10\n"));
}

TEST_F(Ab, EndsARunThatTakesTooLong) {
  const Outcome run = this->run({{"any", {{"sleep", 60}}}}, "--schedules a --rounds 1 --timeout 1");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("FAILED a: still running after 1 s"));
}

TEST_F(Ab, EndsItsRunWhenItIsEnded) {
  const std::string pid = folder_.file("pid");
  const Outcome run = run_dualpipe(
      "ab --command 'echo $$ >" + pid + "; exec sleep 60' --schedules a -o '" + output() + "'", "timeout -s TERM 3");
  EXPECT_EQ(run.exit_code, 124);  // Of timeout: it had to end the program.
  EXPECT_EQ(kill(std::stoi(read_text(pid)), 0), -1);
}

// Nothing runs of a process that has been ended: it is gone, or nobody has asked for its status yet.
bool has_ended(const std::string& pid) {
  for (int i = 0; i < 50; ++i) {
    std::ifstream in("/proc/" + std::to_string(std::stoi(pid)) + "/stat");
    std::string stat;
    std::getline(in, stat);
    if (stat.empty() || stat.find(") Z") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

TEST_F(Ab, RemembersASignalThatComesWhileItEndsARun) {
  const Outcome run =
      run_dualpipe("ab --command 'trap \"\" TERM; sleep 3' --schedules a,b --timeout 1 -o '" + output() + "'",
                   "timeout --preserve-status -s INT 2");
  EXPECT_EQ(run.exit_code, 128 + SIGINT);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/b"));
}

TEST_F(Ab, EndsItsRunAtOnceOnASecondSignal) {
  const std::string pid = folder_.file("pid");
  const std::string twice = folder_.write("twice.sh",
                                          "\"$@\" & dualpipe=$!\n"
                                          "while [ ! -s " +
                                              pid +
                                              " ]; do sleep 0.1; done\n"
                                              "kill -TERM $dualpipe; sleep 1; kill -TERM $dualpipe; wait $dualpipe\n");
  const auto began = std::chrono::steady_clock::now();
  const Outcome run =
      run_dualpipe("ab --command 'trap \"\" TERM; echo $$ >" + pid + "; sleep 30' --schedules a -o '" + output() + "'",
                   "sh " + twice);
  EXPECT_EQ(run.exit_code, 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_TRUE(has_ended(read_text(pid)));
}

TEST_F(Ab, EndsWhatAProgramLeavesBehind) {
  const std::string pid = folder_.file("pid");
  const Outcome run =
      run_dualpipe("ab --command 'sleep 77 & echo $! >" + pid + "; exit 1' --schedules a -o '" + output() + "'");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(has_ended(read_text(pid)));
}

// A shell that ends at once is no reason to kill the launcher that it started.
TEST_F(Ab, LetsAGroupEndInItsOwnTime) {
  const std::string done = folder_.file("done");
  const std::string launcher =
      folder_.write("launcher.sh", "trap 'sleep 1; echo done >" + done + "; exit' TERM\nsleep 30 & wait\n");
  const Outcome run = run_dualpipe("ab --command 'true && sh " + launcher +
                                   "; true' --schedules a --rounds 1 --timeout 1 -o '" + output() + "'");
  EXPECT_THAT(run.out, HasSubstr("FAILED a: still running after 1 s"));
  EXPECT_EQ(read_text(done), "done\n");
}

// As under nohup; and whoever started it may ignore how children end.
TEST_F(Ab, LeavesIgnoredSignalsAlone) {
  const std::string ignoring = folder_.write("ignoring.sh", "trap '' HUP CHLD\nexec \"$@\"\n");
  const std::string plan = folder_.write("plan.json", json{{"any", usual_plan(50)}}.dump());
  const Outcome run = run_dualpipe("ab --command 'kill -HUP $PPID; sleep 1; exec python3 tests/cli/fake_host.py " +
                                       plan + "' --schedules a --rounds 1 -o '" + output() + "'",
                                   "sh " + ignoring);
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
}

TEST_F(Ab, ReplacesNothingButAComparison) {
  folder_.write("out/keep", "");
  std::filesystem::create_directories(output() + "/runs");
  folder_.write("out/runs/mine.txt", "keep");
  folder_.write("out/comparison.json", "{\"format\":\"mine\"}");
  const Outcome run = this->run({{"any", usual_plan(100)}}, "--schedules a --rounds 1 --force");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err, "dualpipe: [ab] --force replaces a comparison, got '" + output() +
                         "' with a 'runs' of something else in it; choose another folder with -o\n");
  EXPECT_EQ(read_text(output() + "/runs/mine.txt"), "keep");
}

TEST_F(Ab, KeepsFoldersThatHoldSomething) {
  std::filesystem::create_directories(output());
  EXPECT_EQ(run({{"any", usual_plan(100)}}, "--schedules a --rounds 1").exit_code, 0);  // An empty folder is fine.
  folder_.write("out/mine.txt", "keep");
  const Outcome refused = run({{"any", usual_plan(100)}}, "--schedules b --rounds 1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err, "dualpipe: [ab] -o must be a new or an empty folder, got '" + output() +
                             "' with files in it; --force replaces the comparison that is there\n");
  EXPECT_EQ(run({{"any", usual_plan(100)}}, "--schedules b --rounds 1 --force").exit_code, 0);
  EXPECT_EQ(read_text(output() + "/mine.txt"), "keep");
  EXPECT_FALSE(std::filesystem::exists(output() + "/runs/a"));
}

TEST_F(Ab, RefusesWhatItCannotWrite) {
  folder_.write("out", "a file");
  const Outcome file = run({{"any", usual_plan(100)}}, "--schedules a");
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_EQ(file.err,
            "dualpipe: [ab] -o must be a folder, got the file '" + output() + "'; for example -o output/ab\n");
  const Outcome below = run_dualpipe("ab --command true -o '" + output() + "/below'");
  EXPECT_EQ(below.exit_code, 2);
  EXPECT_EQ(below.err, "dualpipe: [ab] -o must be a folder that can be written, got '" + output() +
                           "/below': Not a directory; for example -o output/ab\n");
  // Where nobody may make a folder, root neither.
  const Outcome forbidden = run_dualpipe("ab --command true -o /proc/dualpipe_ab");
  EXPECT_EQ(forbidden.exit_code, 2);
  EXPECT_EQ(forbidden.err,
            "dualpipe: [ab] -o must be a folder that can be written, got '/proc/dualpipe_ab': No such file or "
            "directory; for example -o output/ab\n");
  const Outcome nothing = run_dualpipe("ab --command true -o ''");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_EQ(nothing.err, "dualpipe: [ab] -o must be a folder, got ''; for example -o output/ab\n");
}

TEST(AbOptions, AreRefusedWhereTheyDoNotFit) {
  struct Case {
    const char* arguments;
    const char* message;
  };
  const Case cases[] = {
      {"", "[ab] --config FILE or --command 'PROGRAM ...' must say what to train"},
      {"--config configs/gpt_tiny.yaml --command true", "[ab] --config, which starts pretrain_gpt, and --command"},
      {"--command ''", "[ab] --command must be a command line, got an empty one"},
      {"--command true --iterations 9", "[ab] --iterations belongs to --config"},
      {"--command true --nproc 2", "[ab] --nproc belongs to --config"},
      {"--command true --set a=b", "[ab] --set belongs to --config"},
      {"--config missing.yaml",
       "dualpipe: --config: must be a file that is there, got missing.yaml; for example configs/gpt_moe_tiny.yaml; see "
       "dualpipe --help\n"},
      {"--config configs/gpt_tiny.yaml --iterations 3", "[ab] --iterations must be above --warmup = 3, got 3"},
      {"--config configs/gpt_tiny.yaml --nproc 0", "0"},
      {"--config configs/gpt_tiny.yaml --program missing", "[launch] --program must be a program that can be run"},
      {"--command true --schedules a,b,a", "[ab] --schedules must name each schedule once, got a twice"},
      {"--command true --schedules a,b --baseline c", "[ab] --baseline must be one of --schedules, a,b, got c"},
      {"--command true --rounds 0", "0"},
      {"--command true --cost missing.json",
       "dualpipe: [missing.json] must be a cost file that can be read, as 'dualpipe profile -o missing.json' writes "
       "it\n"},
      {"--command true --cost configs/gpt_tiny.yaml", "dualpipe: [configs/gpt_tiny.yaml] "},
      {"--command true --tolerance-first -1",
       "dualpipe: --tolerance-first: must be a number of at least 0, got -1; for example 1e-5; see dualpipe --help\n"},
      {"--command true --tolerance-first nan",
       "dualpipe: --tolerance-first: must be a number of at least 0, got nan; for example 1e-5; see dualpipe --help\n"},
      {"--command true --tolerance-curve x",
       "dualpipe: --tolerance-curve: must be a number of at least 0, got x; for example 1e-3; see dualpipe --help\n"},
      {"--command true --timeout -1",
       "dualpipe: --timeout: must be a number of at least 0, got -1; for example 1800; see dualpipe --help\n"},
  };
  const TemporaryFolder folder;
  for (const Case& c : cases) {
    const Outcome run = run_dualpipe(std::string("ab ") + c.arguments + " -o " + folder.file("out"));
    EXPECT_EQ(run.exit_code, 2) << c.arguments;
    EXPECT_THAT(run.err, HasSubstr(c.message)) << c.arguments;
    EXPECT_THAT(run.out, IsEmpty()) << c.arguments;
    EXPECT_FALSE(std::filesystem::exists(folder.file("out"))) << c.arguments;
  }
}

// Without torchrun every rank is a process of its own, told who it is by RANK and WORLD_SIZE.
TEST(AbTrainer, StartsTheTrainerOncePerRank) {
  const TemporaryFolder folder;
  const std::string program = folder.write(
      "trainer",
      "#!/bin/sh\n"
      "echo \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $DUALPIPE_SCHEDULE $MASTER_ADDR $* \"\n"
      "[ \"$RANK\" = 0 ] || exit 0\n"
      "for i in 1 2 3 4; do echo \"{\\\"iteration\\\":$i,\\\"lm_loss\\\":2,\\\"grad_norm\\\":1,\\\"ms\\\":5}\"; done "
      ">\"$DUALPIPE_OUTPUT/metrics.jsonl\"\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const std::string dualpipe = folder.file("dualpipe");
  std::filesystem::copy_file(DUALPIPE_PROGRAM, dualpipe);  // Where no .venv is three folders above.
  const std::string config = folder.write("c.yaml", "");
  const std::string command = "cd '" + folder.file("") +
                              "' && PATH=/usr/bin:/bin ./dualpipe ab --config c.yaml "
                              "--program ./trainer --nproc 2 --iterations 4 --set seed=7 --schedules a -o out >log";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text(folder.file("log"));
  const std::string log = read_text(folder.file("out/runs/a/round3/output.log"));
  const std::string arguments =
      " a 127.0.0.1 train --config c.yaml --set train_iters=4 --set lr_decay_iters=1000000000 --set eval_interval=0 "
      "--set seed=7 \n";
  EXPECT_THAT(log, HasSubstr("0/2 0/2" + arguments));
  EXPECT_THAT(log, HasSubstr("1/2 1/2" + arguments));
}

}  // namespace
}  // namespace dualpipe
