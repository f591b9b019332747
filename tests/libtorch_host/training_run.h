// tests/libtorch_host/training_run.h
//
// The trainer as a user runs it, in several processes: a fixture with a small text and a configuration for it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/data/prepare_data.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/support/run_processes.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {

inline constexpr int kIterations = 20;
inline constexpr int kMicroBatches = 16;

class TrainingRuns : public testing::Test {
 protected:
  void SetUp() override {
    pretrain_gpt::PrepareOptions prepare;
    prepare.inputs = {"plugin/schedule", "plugin/analysis"};
    prepare.output = (folder_ / "text").string();
    prepare.extensions = {".h", ".cc"};
    pretrain_gpt::prepare_data(prepare);
    std::ofstream(folder_ / "gpt.yaml") << config();
  }

  std::string config() const {
    return fmt::format(
        "num_layers: 8\nhidden_size: 32\nnum_attention_heads: 4\nseq_length: 32\nmicro_batch_size: 1\n"
        "global_batch_size: {}\ntrain_iters: {}\nlr: 3e-3\nlr_warmup_iters: 5\nclip_grad: 1.0\nseed: 7\n"
        "data_path: {}\nlog_interval: 10\ntimeout_s: 60\n",
        kMicroBatches, kIterations, (folder_ / "text").string());
  }

  struct Run {
    std::vector<nlohmann::json> metrics;
    std::vector<std::string> actions;  // By rank.
    std::filesystem::path output;
    std::string log;  // Of rank 0.
  };

  Run train(const std::string& schedule, int processes, const std::vector<std::string>& more = {}) {
    const auto output = folder_ / fmt::format("run{}", runs_++);
    std::vector<std::string> args{(folder_ / "gpt.yaml").string(), "pipeline_schedule=" + schedule,
                                  "output_dir=" + output.string(), "record_actions=true"};
    args.insert(args.end(), more.begin(), more.end());
    const auto outcomes = run_processes(processes, "train", args, {.bound = std::chrono::seconds(120)});
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.to_string();
    Run run;
    run.output = output;
    run.log = outcomes.at(0).out;
    std::ifstream metrics(output / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) run.metrics.push_back(nlohmann::json::parse(line));
    std::ifstream actions(output / "actions.csv");
    for (std::string line; std::getline(actions, line);) run.actions.push_back(line);
    EXPECT_EQ(run.metrics.size(), static_cast<std::size_t>(kIterations)) << schedule;
    return run;
  }

  static double relative(const Run& run, const Run& reference, std::size_t i, const char* key) {
    const double wanted = reference.metrics.at(i).at(key);
    return std::abs(run.metrics.at(i).at(key).get<double>() - wanted) / std::abs(wanted);
  }

  void expect_like_one_process(const Run& run, const Run& reference) {
    EXPECT_LE(relative(run, reference, 0, "lm_loss"), 1e-6);
    EXPECT_LE(relative(run, reference, 0, "grad_norm"), 1e-5);
    for (std::size_t i = 0; i < kIterations; ++i) EXPECT_LE(relative(run, reference, i, "lm_loss"), 1e-4) << i;
  }

  static void expect_same_bits(const Run& run, const Run& again) {
    for (std::size_t i = 0; i < kIterations; ++i) {
      EXPECT_EQ(run.metrics.at(i).at("lm_loss"), again.metrics.at(i).at("lm_loss")) << i;
      EXPECT_EQ(run.metrics.at(i).at("grad_norm"), again.metrics.at(i).at("grad_norm")) << i;
    }
  }

  std::vector<std::string> planned(const std::string& schedule, int processes) {
    std::ostringstream text;
    print_rows(text, builtin_registry().make(schedule, {processes, kMicroBatches, 2}).rows);
    std::vector<std::string> rows;
    std::istringstream lines(text.str());
    for (std::string line; std::getline(lines, line);) rows.push_back(line);
    return rows;
  }

  // builtin_1f1b runs the order of 1f1b.
  void expect_all_like_one_process(int processes, const std::vector<std::string>& schedules) {
    const Run reference = train("builtin_1f1b", 1);
    for (const std::string& schedule : schedules) {
      SCOPED_TRACE(fmt::format("{} in {} processes", schedule, processes));
      const Run run = train(schedule, processes);
      expect_like_one_process(run, reference);
      EXPECT_EQ(run.actions, planned(schedule == "builtin_1f1b" ? "1f1b" : schedule, processes));
    }
  }

  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
  int runs_ = 0;
};

}  // namespace dualpipe
