// Timeline files of a Pipeline: what they say is what ran.
#include "plugin/runtime/timeline_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/runtime/comparison.h"
#include "tests/runtime/phased_stage.h"

namespace dualpipe {
namespace {

using Json = nlohmann::json;

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::filesystem::path folder() {
  const auto path = std::filesystem::path(testing::TempDir()) / "dualpipe_timelines";
  std::filesystem::create_directories(path);
  return path;
}

// Every stage has a MoE layer of five phases: two computes, three exchanges.
Comparison phased(const std::string& schedule, int ranks, int num_microbatches) {
  Comparison comparison = mlp_comparison(schedule, ranks, num_microbatches);
  comparison.make = [](int stage, int) { return phased_stage(stage, {.layers = {LayerKind::kMoe}}); };
  return comparison;
}

void expect_header(const Json& header, const Pipeline& pipeline) {
  EXPECT_EQ(header.at("format"), "dualpipe-timeline");
  EXPECT_EQ(header.at("version"), 1);
  EXPECT_EQ(header.at("schedule"), "dualpipe");
  EXPECT_EQ(header.at("rank"), pipeline.rank());
  EXPECT_EQ(header.at("world_size"), 4);
  EXPECT_EQ(header.at("pipeline_rank"), pipeline.rank());
  EXPECT_EQ(header.at("pipeline_model_parallel_size"), 4);
  EXPECT_EQ(header.at("num_microbatches"), 8);
  EXPECT_EQ(header.at("num_stages"), 4);
  EXPECT_EQ(header.at("stages"), Json({pipeline.rank(), 3 - pipeline.rank()}));
  std::size_t parameters = 0;
  for (const StageParameter& parameter : pipeline.parameters()) parameters += parameter.parameter.nbytes();
  EXPECT_EQ(header.at("parameter_bytes"), parameters);
  EXPECT_EQ(header.at("gradient_bytes"), parameters);
  EXPECT_FALSE(header.contains("optimizer_bytes"));
}

void expect_spans(const Json& step, const Row& plan) {
  Row ran;
  double before = 0;
  for (const Json& span : step.at("spans")) {
    ran.push_back(parse_action(span.at(0).get<std::string>()));
    EXPECT_LE(before, span.at(1).get<double>());
    EXPECT_LE(span.at(1).get<double>(), span.at(2).get<double>());
    const double length = span.at(2).get<double>() - span.at(1).get<double>();
    EXPECT_LE(span.size() > 3 ? span.at(3).get<double>() : 0.0, length);
    before = span.at(1);
  }
  EXPECT_EQ(print_row(ran), print_row(plan));
  EXPECT_LE(before, step.at("seconds").get<double>());
}

// Each is named after an action that ran, and what it waited lies in it.
void expect_phases(const Json& step, const StepStatistics& statistics) {
  double exchanges = 0, waited = 0;
  std::size_t count = 0;
  for (const Json& phase : step.at("phases")) {
    const auto name = phase.at(0).get<std::string>();
    const Op op = parse_action(name.substr(0, name.find(' '))).op;
    EXPECT_LT(name.find(' ') + 1, name.size()) << name;
    EXPECT_TRUE(is_compute(op.kind)) << name;
    if (phase.size() < 4) continue;
    ++count;
    exchanges += phase.at(2).get<double>() - phase.at(1).get<double>();
    waited += phase.at(3).get<double>();
  }
  EXPECT_EQ(step.at("phases").size(), statistics.phases.size());
  EXPECT_GT(count, 0u);
  EXPECT_NEAR(step.at("exchange_seconds").get<double>(), exchanges, 1e-9);
  EXPECT_NEAR(step.at("exposed_seconds").get<double>(), waited, 1e-9);
}

TEST(TimelineFile, SaysWhatEveryRankRan) {
  Comparison comparison = phased("dualpipe", 4, 8);
  const Schedule plan = builtin_registry().make("dualpipe", {4, 8});
  const std::vector<int> peaks = peak_activations(plan);
  const double before = unix_seconds();
  run_on_ranks(comparison, [&](Rank& rank) {
    Comparison mine = comparison;
    std::int64_t calls = 0;
    mine.options.live_bytes = [&calls] { return 100 * calls++; };
    Pipeline pipeline = make_pipeline(mine, rank, stages_of_rank(mine, rank.index));
    train_once(mine, pipeline);
    TimelineFile file(folder(), timeline_header(pipeline));
    file.append(7, {.statistics = pipeline.statistics()});
    file.append(8, {.statistics = pipeline.statistics(), .seconds = 1e3, .peak_activation_bytes = 4096});
    const std::vector<Json> lines = lines_of(folder() / ("timeline_rank" + std::to_string(rank.index) + ".jsonl"));
    ASSERT_EQ(lines.size(), 3u);
    expect_header(lines[0], pipeline);
    const Json& step = lines[1];
    EXPECT_EQ(step.at("iteration"), 7);
    EXPECT_GT(step.at("began").get<double>(), before);
    EXPECT_LT(step.at("began").get<double>(), unix_seconds());
    expect_spans(step, plan.rows[rank.index]);
    expect_phases(step, pipeline.statistics());
    EXPECT_EQ(step.at("peak_activations"), peaks[rank.index]);
    EXPECT_FALSE(step.contains("peak_activation_bytes"));
    ASSERT_EQ(step.at("memory").size(), plan.rows[rank.index].size() + 1);
    EXPECT_EQ(step.at("memory").at(0), Json({0.0, 0}));
    EXPECT_EQ(step.at("memory").back().at(1), 100 * plan.rows[rank.index].size());
    EXPECT_EQ(lines[2].at("seconds"), 1e3);
    EXPECT_EQ(lines[2].at("peak_activation_bytes"), 4096);
  });
}

TEST(TimelineFile, LeavesOutWhatIsNotKnown) {
  StepStatistics statistics;
  statistics.began = 1764460800.25;
  statistics.spans = {{parse_action("(0F7;3B2)OVERLAP_F_B"), 0.125, 0.5}};
  statistics.peak_activations = 2;
  EXPECT_EQ(step_line(3, {.statistics = statistics}),
            R"({"iteration":3,"began":1764460800.25,"seconds":0.5,"spans":[["(0F7;3B2)OVERLAP_F_B",0.125,0.5]],)"
            R"("peak_activations":2})");
  statistics.spans[0].waited = 0.0625;
  EXPECT_EQ(step_line(3, {.statistics = statistics}),
            R"({"iteration":3,"began":1764460800.25,"seconds":0.5,)"
            R"("spans":[["(0F7;3B2)OVERLAP_F_B",0.125,0.5,0.0625]],"peak_activations":2})");
}

// /dev/full takes no byte.
TEST(TimelineFile, SaysWhereItCannotBeWritten) {
  const auto full = folder() / "full";
  std::filesystem::create_directories(full);
  const auto path = full / "timeline_rank0.jsonl";
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/full", path);
  const auto message = [](const std::filesystem::path& where) -> std::string {
    try {
      TimelineFile file(where, {});
    } catch (const ScheduleError& error) {
      return error.what();
    }
    return "written";
  };
  EXPECT_EQ(message(full), "[" + path.string() +
                               "] must be a file that can be written, got: No space left on device; free some space, "
                               "or choose another folder");
  EXPECT_EQ(message("/no/such/folder"),
            "[/no/such/folder/timeline_rank0.jsonl] must be a file that can be written, got: No such file or "
            "directory; free some space, or choose another folder");
}

}  // namespace
}  // namespace dualpipe
