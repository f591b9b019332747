#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/iteration_record.h"
#include "examples/pretrain_gpt/line_file.h"
#include "examples/pretrain_gpt/timeline_file.h"
#include "examples/pretrain_gpt/trace_recorder.h"
#include "examples/pretrain_gpt/train_log.h"
#include "tests/support/temporary_folder.h"

namespace pretrain_gpt {
namespace {

IterationRecord record_of(std::int64_t iteration, double loss) {
  IterationRecord record;
  record.iteration = iteration;
  record.consumed_samples = 8 * iteration;
  record.lm_loss = loss;
  record.grad_norm = 0.1 + 0.2;
  record.lr = 1e-3;
  record.ms = 100;
  record.tokens_per_second = 5120;
  return record;
}

TEST(MegatronLine, HasMeansOfItsSteps) {
  Config config;
  config.global_batch_size = 8;
  LogInterval interval;
  interval.add(record_of(9, 2));
  interval.add(record_of(10, 4));
  EXPECT_EQ(
      megatron_line(interval, config),
      " iteration       10/     200 | consumed samples:           80 | elapsed time per iteration (ms): 100.0 | "
      "tokens per second: 5120 | learning rate: 1.000000E-03 | global batch size:     8 | lm loss: 3.000000E+00 | "
      "grad norm: 0.300 | number of skipped iterations:   0 |");
}

TEST(MegatronLine, CountsSkippedStepsAndHasTheValidationLoss) {
  LogInterval interval;
  IterationRecord record = record_of(1, 2);
  record.skipped = true;
  record.validation_loss = 1.5;
  interval.add(record);
  const std::string line = megatron_line(interval, Config{});
  EXPECT_TRUE(line.ends_with("number of skipped iterations:   1 | validation loss: 1.500000E+00 |")) << line;
}

TEST(MetricsLine, KeepsAllDigits) {
  const auto json = nlohmann::json::parse(metrics_line(record_of(3, 1.0 / 3)));
  EXPECT_EQ(json.size(), 6);
  EXPECT_EQ(json.at("iteration"), 3);
  EXPECT_EQ(json.at("lm_loss").get<double>(), 1.0 / 3);
  EXPECT_EQ(json.at("grad_norm").get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json.at("lr").get<double>(), 1e-3);
  EXPECT_EQ(json.at("ms").get<double>(), 100);
  EXPECT_EQ(json.at("tokens_per_second").get<double>(), 5120);
}

TEST(MetricsLine, SaysWhereAStepWasSkipped) {
  IterationRecord record = record_of(3, 1);
  record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  record.skipped = true;
  const auto json = nlohmann::json::parse(metrics_line(record));
  EXPECT_TRUE(json.at("grad_norm").is_null());
  EXPECT_EQ(json.at("skipped"), true);
}

TEST(ProgressBar, FillsUp) {
  EXPECT_EQ(progress_bar(0, 200, 4), "[    ]   0%  0/200");
  EXPECT_EQ(progress_bar(100, 200, 4), "[██  ]  50%  100/200");
  EXPECT_EQ(progress_bar(200, 200, 4), "[████] 100%  200/200");
}

TEST(TrainLog, WritesEveryStepAndALinePerInterval) {
  const dualpipe::TemporaryFolder folder;
  Config config;
  config.output_dir = folder.path();
  config.train_iters = 5;
  config.log_interval = 2;
  std::FILE* stream = std::tmpfile();
  TrainLog log(config, stream);
  for (int iteration = 1; iteration <= 5; ++iteration) {
    log.add(record_of(iteration, 1));
  }
  std::rewind(stream);
  int lines = 0;
  for (int letter; (letter = std::fgetc(stream)) != EOF;) {
    EXPECT_NE(letter, '\x1b');
    lines += letter == '\n' ? 1 : 0;
  }
  EXPECT_EQ(lines, 3);  // After steps 2, 4 and the last.
  std::ifstream metrics(log.metrics_path());
  int steps = 0;
  for (std::string line; std::getline(metrics, line);) {
    EXPECT_EQ(nlohmann::json::parse(line).at("iteration"), ++steps);
  }
  EXPECT_EQ(steps, 5);
  std::fclose(stream);
}

// A run that goes on keeps the lines of the steps that are done, and no others.
TEST(TrainLog, GoesOnBehindTheStepsThatAreDone) {
  const dualpipe::TemporaryFolder folder;
  Config config;
  config.output_dir = folder.path();
  std::FILE* stream = std::tmpfile();
  const auto iterations_after = [&](std::int64_t done) {
    TrainLog(config, stream, done).add(record_of(done + 1, 1));
    std::vector<int> iterations;
    std::ifstream metrics(std::filesystem::path(config.output_dir) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      iterations.push_back(nlohmann::json::parse(line).at("iteration"));
    }
    return iterations;
  };
  EXPECT_EQ(iterations_after(0), (std::vector<int>{1}));
  EXPECT_EQ(iterations_after(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(iterations_after(2), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(iterations_after(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(iterations_after(5), (std::vector<int>{1, 2, 6}));
  EXPECT_EQ(iterations_after(6), (std::vector<int>{1, 2, 7}));
  std::fclose(stream);
}

TEST(TimelineHeader, HasTheFormOfTheFile) {
  TimelineHeader header{"builtin_1f1b", 1, 4, 1, 2, 8, 2, {1}, {10, 20, 40}};
  EXPECT_EQ(timeline_header_line(header),
            R"({"format":"dualpipe-timeline","version":1,"schedule":"builtin_1f1b","rank":1,"world_size":4,)"
            R"("pipeline_rank":1,"pipeline_model_parallel_size":2,"num_microbatches":8,"num_stages":2,"stages":[1],)"
            R"("parameter_bytes":10,"gradient_bytes":20,"optimizer_bytes":40})");
}

TEST(TimelineStep, HasWhatTheTraceHasAndNoMore) {
  TimelineStep step{12, 0.5, {}, 4096};
  step.trace.began = 1764460800.25;
  step.trace.actions = {{"0F0", 0.125, 0.25}};
  EXPECT_EQ(timeline_step_line(step),
            R"({"iteration":12,"began":1764460800.25,"seconds":0.5,"spans":[["0F0",0.125,0.25]],)"
            R"("peak_activation_bytes":4096})");
  step.trace.phases = {{"0F0 0.attention", 0.125, 0.1875}, {"0F0 0.dispatch", 0.125, 0.25, 0.0625}};
  step.trace.peak_activations = 3;
  step.trace.memory = {{0, 0}, {0.25, 64}};
  EXPECT_EQ(timeline_step_line(step),
            R"({"iteration":12,"began":1764460800.25,"seconds":0.5,"spans":[["0F0",0.125,0.25]],)"
            R"("phases":[["0F0 0.attention",0.125,0.1875],["0F0 0.dispatch",0.125,0.25,0.0625]],)"
            R"("exchange_seconds":0.125,"exposed_seconds":0.0625,"peak_activations":3,)"
            R"("peak_activation_bytes":4096,"memory":[[0.0,0],[0.25,64]]})");
}

TEST(TraceRecorder, CountsFromTheStepsBegin) {
  std::int64_t bytes = 1000;
  TraceRecorder recorder([&bytes] { return bytes; });
  const double before = unix_seconds();
  for (int step = 0; step < 2; ++step) {
    bytes = 1000;
    recorder.begin();
    recorder.begin_activation();
    recorder.begin_activation();
    recorder.end_activation();
    bytes = 1064;
    recorder.add_action("0F0", 0);
    const auto now = TraceRecorder::Clock::now();
    recorder.add_exchange("0F0 0.dispatch", now, now + std::chrono::milliseconds(1),
                          now + std::chrono::milliseconds(3));
  }
  const StepTrace& trace = recorder.trace();
  EXPECT_GE(trace.began, before);
  EXPECT_LE(trace.began, unix_seconds());
  EXPECT_EQ(trace.peak_activations, 2);
  ASSERT_EQ(trace.actions.size(), 1);
  ASSERT_EQ(trace.memory.size(), 2);
  EXPECT_EQ(trace.memory[0].bytes, 0);
  EXPECT_EQ(trace.memory[1].bytes, 64);
  EXPECT_EQ(trace.memory[1].seconds, trace.actions[0].end);
  const auto exchanges = exchange_seconds(trace);
  ASSERT_TRUE(exchanges);
  EXPECT_NEAR(exchanges->total, 3e-3, 1e-9);
  EXPECT_NEAR(exchanges->waited, 2e-3, 1e-9);
  EXPECT_FALSE(exchange_seconds(StepTrace{}));
  recorder.begin();  // A dense model has none.
  const auto none = exchange_seconds(recorder.trace());
  ASSERT_TRUE(none);
  EXPECT_EQ(none->waited, 0);
}

// /dev/full is a disk without space.
TEST(LineFile, SaysThatALineIsLostAndWhy) {
  LineFile file("/dev/full");
  try {
    file.append("0F0,0B0");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[/dev/full] must be a file that can be written, got: No space left on device; free some space, or "
                 "choose another folder, for example output_dir: output");
  }
}

TEST(LineFile, RefusesAFileThatCannotBeMade) {
  try {
    LineFile file("no/such/folder/actions.csv");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[no/such/folder/actions.csv] must be a file that can be written, got: No such file or directory; "
                 "free some space, or choose another folder, for example output_dir: output");
  }
}

}  // namespace
}  // namespace pretrain_gpt
