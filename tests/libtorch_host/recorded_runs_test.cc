// What a run leaves for those who compare it: timeline files under every kind of schedule, which change no number, and
// the schedule that `auto` chose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "plugin/analysis/validate.h"
#include "plugin/compare/measured_steps.h"
#include "plugin/compare/run_files.h"
#include "tests/libtorch_host/training_run.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

std::string row_of(const std::vector<Span>& spans) {
  Row row;
  for (const Span& span : spans) row.push_back(span.action);
  return print_row(row);
}

std::map<Op, double> starts_of(const Timeline& timeline) {
  std::map<Op, double> starts;
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      starts[span.action.op] = span.start;
      if (span.action.paired) starts[*span.action.paired] = span.start;
    }
  }
  return starts;
}

// On one clock nothing begins before what it needs.
void expect_one_clock(const MeasuredStep& step) {
  const std::map<Op, double> starts = starts_of(step.timeline);
  int messages = 0;
  for (const auto& [op, start] : starts) {
    if (op.kind == Kind::kForward && op.stage > 0) {
      EXPECT_GE(start, starts.at(make_op(op.stage - 1, Kind::kForward, op.micro_batch))) << to_string(op);
      ++messages;
    }
  }
  EXPECT_GT(messages, 0);
}

void expect_memory(const RecordedStep& step) {
  ASSERT_EQ(step.memory.size(), step.spans.size() + 1);
  EXPECT_EQ(step.memory.front().bytes, 0);
  double most = 0;
  for (const auto& point : step.memory) most = std::max(most, point.bytes);
  EXPECT_GT(most, 0);
  EXPECT_LE(most, step.peak_activation_bytes);
  EXPECT_LT(step.memory.back().bytes, most / 2);
}

// What an exchange of a step took adds up to what the step says.
void expect_exchanges(const RecordedStep& step) {
  double total = 0, waited = 0;
  for (const PhaseRecord& phase : step.phases) {
    if (!phase.waited) continue;
    total += phase.end - phase.start;
    waited += *phase.waited;
  }
  EXPECT_GT(total, 0);
  EXPECT_NEAR(step.exchange_seconds.value(), total, 1e-9);
  EXPECT_NEAR(step.exposed_seconds.value(), waited, 1e-9);
}

void expect_recorded(const RunFiles& files, const std::string& name, const Schedule& plan) {
  const int pipelines = static_cast<int>(files.ranks.size()) / plan.placement.ranks();
  const std::vector<int> peaks = peak_activations(plan);
  for (const RankTimeline& rank : files.ranks) {
    EXPECT_EQ(rank.schedule, name);
    EXPECT_EQ(rank.pipeline_rank, rank.rank / pipelines);
    EXPECT_EQ(rank.num_microbatches, plan.num_microbatches);
    EXPECT_EQ(rank.num_stages, plan.placement.stages());
    EXPECT_EQ(rank.stages, plan.placement.stages_of(rank.pipeline_rank));
    EXPECT_GT(rank.parameter_bytes, 0);
    EXPECT_EQ(rank.gradient_bytes, rank.parameter_bytes);
    EXPECT_GE(rank.optimizer_bytes.value(), 2 * rank.parameter_bytes.value());
    ASSERT_EQ(rank.steps.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const RecordedStep& step = rank.steps[i];
      EXPECT_EQ(step.iteration, kIterations - 2 + static_cast<int>(i));
      EXPECT_EQ(row_of(step.spans), print_row(plan.rows[rank.pipeline_rank]));
      EXPECT_EQ(step.peak_activations, peaks[rank.pipeline_rank]);
      EXPECT_LT(step.spans.back().end, step.seconds);
      expect_memory(step);
    }
  }
  const std::vector<MeasuredStep> steps = measured_steps(files);
  EXPECT_EQ(static_cast<int>(steps.size()), 3 * pipelines);
  for (const MeasuredStep& step : steps) expect_one_clock(step);
}

TEST_F(TrainingRuns, RecordWhatWasPlannedAndChangeNoBit) {
  for (const std::string schedule : {"builtin_1f1b", "zb1p", "dualpipe", "dualpipev"}) {
    SCOPED_TRACE(schedule);
    const Run recorded = train(schedule, 2, {"record_timeline=3"});
    expect_same_bits(recorded, train(schedule, 2));
    const std::string plan = schedule == "builtin_1f1b" ? "1f1b" : schedule;
    expect_recorded(read_run(recorded.output), schedule, builtin_registry().make(plan, {2, kMicroBatches}));
  }
}

// The closing W run in the optimizer's step, which belongs to the step.
TEST_F(TrainingRuns, RecordDeferredWeightGradients) {
  const Run run = train("dualpipe", 2, {"record_timeline=3", "defer_tail_weight_gradients=true"});
  expect_recorded(read_run(run.output), "dualpipe", builtin_registry().make("dualpipe", {2, kMicroBatches}));
}

TEST_F(TrainingRuns, RecordPhasesAndExchangesOfExperts) {
  const std::vector<std::string> experts{"num_experts=4", "expert_model_parallel_size=2",
                                         "pipeline_model_parallel_size=2", "untie_embeddings_and_output_weights=true"};
  std::vector<std::string> settings = experts;
  settings.push_back("record_timeline=3");
  const Run recorded = train("dualpipe", 4, settings);
  expect_same_bits(recorded, train("dualpipe", 4, experts));
  const RunFiles files = read_run(recorded.output);
  expect_recorded(files, "dualpipe", builtin_registry().make("dualpipe", {2, kMicroBatches / 2}));
  for (const RankTimeline& rank : files.ranks) {
    for (const RecordedStep& step : rank.steps) expect_exchanges(step);
  }
}

// --- auto

TEST_F(TrainingRuns, ChooseTheirScheduleThemselves) {
  const Run reference = train("builtin_1f1b", 1, {"params_dtype=float64"});
  const Run run = train("auto", 4, {"params_dtype=float64", "schedule_search_s=1"});
  for (std::size_t i = 0; i < kIterations; ++i) {
    EXPECT_LE(relative(run, reference, i, "lm_loss"), 1e-10) << i;
    EXPECT_LE(relative(run, reference, i, "grad_norm"), 1e-8) << i;
  }
  const Schedule chosen = read_schedule((run.output / "schedule.csv").string());
  EXPECT_TRUE(validate(chosen).empty());
  EXPECT_EQ(chosen.num_microbatches, kMicroBatches);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(run.actions.at(rank), print_row(chosen.rows[rank]));
  EXPECT_THAT(run.log, HasSubstr("auto: placement "));
  EXPECT_THAT(run.log, HasSubstr("(no cost_file: stages cost the same, F = I = W, an overlapped pair F + B, messages "
                                 "nothing)"));
  EXPECT_THAT(run.log, HasSubstr("the schedule: " + (run.output / "schedule.csv").string()));
}

// Pairs that cost less than their parts and bytes that fit twice: mirrors, whose gradients are summed over both data
// ranks and both ends.
TEST_F(TrainingRuns, ChooseMirrorsBesideDataParallelism) {
  const std::string stage = R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "overlapped": 1.5,)"
                            R"( "parameter_bytes": 1e6, "activation_bytes": 1e6})";
  const std::string costs = (folder_ / "cost.json").string();
  std::ofstream(costs) << R"({"format": "dualpipe-cost", "version": 1, "unit": "ms", "stages": [)" << stage << ", "
                       << stage << "]}";
  const Run reference = train("builtin_1f1b", 1, {"params_dtype=float64"});
  const std::vector<std::string> settings{
      "params_dtype=float64",         "schedule_search_s=1", "pipeline_model_parallel_size=2",
      "pipeline_layer_counts=[4, 4]", "cost_file=" + costs,  "memory_limit_gb=0.02"};
  const Run run = train("auto", 4, settings);
  for (std::size_t i = 0; i < kIterations; ++i) EXPECT_LE(relative(run, reference, i, "lm_loss"), 1e-10) << i;
  const Schedule chosen = read_schedule((run.output / "schedule.csv").string());
  EXPECT_TRUE(chosen.placement.is_bidirectional());
  EXPECT_EQ(chosen.num_microbatches, kMicroBatches / 2);
  EXPECT_THAT(run.log, HasSubstr("(costs of " + costs + ")"));
  // What fits nothing ends every rank, with what would fit.
  std::vector<std::string> args{(folder_ / "gpt.yaml").string(), "pipeline_schedule=auto",
                                "output_dir=" + (folder_ / "none").string()};
  args.insert(args.end(), settings.begin(), settings.end());
  args.back() = "memory_limit_gb=0.001";
  for (const Outcome& outcome : run_processes(4, "train", args, {.bound = std::chrono::seconds(60)})) {
    EXPECT_EQ(outcome.exit_code, 10) << outcome.to_string();
    EXPECT_THAT(outcome.err, HasSubstr("no order fits memory_limit_gb = 0.001 on 2 ranks; the least that would: "));
  }
}

// A chosen schedule is a file like any other, whatever its placement.
TEST_F(TrainingRuns, TakeFilesOfEveryPlacement) {
  const Run reference = train("builtin_1f1b", 1);
  for (const std::string schedule : {"interleaved_1f1b", "dualpipe", "dualpipev"}) {
    for (const int data : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, data-parallel {}", schedule, data));
      const std::string path = (folder_ / (schedule + ".csv")).string();
      const Schedule plan = builtin_registry().make(schedule, {2, kMicroBatches / data, 2});
      std::ofstream file(path);
      print_rows(file, plan.rows);
      file.close();
      const Run run = train(path, 2 * data, {"pipeline_model_parallel_size=2"});
      expect_like_one_process(run, reference);
      EXPECT_EQ(run.actions, (std::vector<std::string>{print_row(plan.rows[0]), print_row(plan.rows[1])}));
    }
  }
}

}  // namespace
}  // namespace dualpipe
