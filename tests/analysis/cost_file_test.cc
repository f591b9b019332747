#include "plugin/analysis/cost_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plugin/analysis/memory.h"
#include "plugin/schedule/registry.h"
#include "tests/schedule/refusal.h"

namespace dualpipe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kHead = R"("format":"dualpipe-cost","version":1,"unit":"ms")";
constexpr const char* kStage = R"({"forward":1,"backward_input":2,"backward_weight":3})";

CostFile parse(const std::string& json) { return parse_cost_file(json, "my.json"); }
// A file of one stage, with `more` behind it.
CostFile parse_with(const std::string& more) {
  return parse(std::string("{") + kHead + R"(,"stages":[)" + kStage + "]" + more + "}");
}

CostFile full_file() {
  CostFile file{"my.json", "a test \"quoted\"", 0.25, 12, {}, {}};
  for (int stage = 0; stage < 4; ++stage) {
    const double size = stage + 1;
    file.stages.push_back(
        {{size, 2 * size, 3 * size, 5 * size}, size / 8, 100 * size, 50 * size, 300 * size, 7 * size});
  }
  file.layers = {{"embedding", 0.1, 0, 0.2, 10}, {"0", 1, 1, 1.0 / 3, std::nullopt}, {"head", 2, 2, 2, 20}};
  return file;
}

TEST(CostFile, IsWhatWasWritten) { EXPECT_EQ(parse(to_json(full_file())), full_file()); }

TEST(CostFile, WhatMayBeMissingMayBeNull) {
  const CostFile file = parse_with("");
  EXPECT_EQ(file.stages.at(0).cost, (StageCost{1, 2, 3, 6}));
  EXPECT_EQ(file.stages.at(0).all_to_all, std::nullopt);
  EXPECT_EQ(file.latency, 0);
  EXPECT_THAT(file.layers, IsEmpty());
  EXPECT_EQ(parse_with(R"(,"source":null,"latency":null,"step_overhead":null,"layers":null)"), file);
  EXPECT_EQ(parse(to_json(file)), file);
}

TEST(CostFile, ManyStagesAreFine) {
  CostFile file = full_file();
  file.stages.resize(100000, file.stages.front());
  EXPECT_EQ(parse(to_json(file)), file);
}

TEST(CostFile, RefusesWhatItDoesNotUnderstand) {
  const std::string number = " must be a finite number of at least 0, such as 1.5, got ";
  const std::string head = std::string("{") + kHead;
  const auto finite = [](const std::string& key, const std::string& given, int column) {
    return key + " must be a finite number, such as 1.5, got " + given + " at line 1, column " + std::to_string(column);
  };
  const auto stage = [&head](const std::string& text) { return head + R"(,"stages":[)" + kStage + "," + text + "]}"; };
  const struct {
    std::string json;
    std::string message;
  } cases[] = {
      // No such file at all.
      {"",
       "must be JSON: parse error at line 1, column 1: syntax error while parsing value - unexpected end of input; "
       "expected '[', '{', or a literal"},
      {"[1]", "the file must be an object {...}, got a list"},
      {"7", "the file must be an object {...}, got 7"},
      {R"({"format":"dualpipe-comparison"})", "format must be \"dualpipe-cost\", got \"dualpipe-comparison\""},
      {"{}", "format must be \"dualpipe-cost\", got nothing"},
      {R"({"format":"dualpipe-cost","version":2})", "version must be 1, got 2"},
      {R"({"format":"dualpipe-cost","version":1,"unit":"s"})", "unit must be \"ms\", got \"s\""},
      // Stages.
      {head + "}", "stages must be a list of objects [{...}, ...], got nothing"},
      {head + R"(,"stages":{}})", "stages must be a list of objects [{...}, ...], got an object"},
      {head + R"(,"stages":null})", "stages must be a list of objects [{...}, ...], got null"},
      {head + R"(,"stages":[]})",
       "stages must list at least one stage, got none; 'dualpipe profile' writes such a file"},
      {stage("5"), "stages[1] must be an object {...}, got 5"},
      {stage("{}"), "stages[1].forward" + number + "nothing"},
      {stage(R"({"forward":1,"backward_input":2})"), "stages[1].backward_weight" + number + "nothing"},
      // Keys.
      {stage(R"({"foward":1})"), "unknown key 'stages[1].foward': did you mean 'forward'?"},
      {stage(R"({"zzzzzzzzz":1})"),
       "unknown key 'stages[1].zzzzzzzzz': known are forward, backward_input, backward_weight, overlapped, all_to_all, "
       "parameter_bytes, gradient_bytes, optimizer_bytes, activation_bytes"},
      {stage(R"({"forward":1,"forward":2})"), "key 'forward' must be given once in an object, got it twice"},
      {head + R"(,"stage":[]})", "unknown key 'stage': did you mean 'stages'?"},
      // Numbers.
      {stage(R"({"forward":-1})"), "stages[1].forward" + number + "-1"},
      {stage(R"({"forward":"1"})"), "stages[1].forward" + number + "\"1\""},
      {stage(R"({"forward":true})"), "stages[1].forward" + number + "true"},
      {stage(R"({"forward":null})"), "stages[1].forward" + number + "null"},
      {stage(R"({"forward":[1]})"), "stages[1].forward" + number + "a list"},
      {stage(R"({"forward":1e999})"), finite("stages[1].forward", "1e999", 125)},
      {stage(R"({"forward":NaN})"), finite("stages[1].forward", "NaN", 125)},
      {stage(R"({"forward":nan})"), finite("stages[1].forward", "nan", 125)},
      {stage(R"({"forward":-Infinity})"), finite("stages[1].forward", "-Infinity", 125)},
      {stage(R"({"forward":1,"backward_input":Infinity})"), finite("stages[1].backward_input", "Infinity", 144)},
      {head + ",\n\"source\":\"a,b\",\n  \"latency\": 1e400,\"stages\":[]}",
       "latency must be a finite number, such as 1.5, got 1e400 at line 3, column 14"},
      {head + ",\"latency\":[0,[1,NaN]]}", finite("latency[1][1]", "NaN", 67)},
      {head + ",\"latency\":Nothing}",
       "must be JSON: parse error at line 1, column 61: syntax error while parsing value - invalid literal; last read: "
       "'\"latency\":N'"},
      {stage(R"({"forward":1,"backward_input":1,"backward_weight":1,"activation_bytes":-4})"),
       "stages[1].activation_bytes" + number + "-4"},
      {head + R"(,"latency":"fast","stages":[{"forward":1,"backward_input":1,"backward_weight":1}]})",
       "latency" + number + "\"fast\""},
      // Layers.
      {head + R"(,"stages":[{"forward":1,"backward_input":1,"backward_weight":1}],"layers":[{"name":3}]})",
       "layers[0].name must be text, such as \"embedding\", got 3"},
      {head + R"(,"stages":[{"forward":1,"backward_input":1,"backward_weight":1}],"layers":[{"name":"x"}]})",
       "layers[0].forward" + number + "nothing"},
      // Depth.
      {stage(R"({"forward":[[[[[[1]]]]]]})"),
       "must have at most 8 objects and lists in each other, got more; 'dualpipe profile' writes a file that works"},
      {std::string(1000000, '['),
       "must have at most 8 objects and lists in each other, got more; 'dualpipe profile' writes a file that works"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_EQ(refusal_of([&json = json] { parse(json); }), "[my.json] " + message) << json.substr(0, 200);
  }
}

TEST(CostFile, RefusesAFileThatIsNotThere) {
  EXPECT_EQ(refusal_of([] { read_cost_file("/nonexistent/c.json"); }),
            "[/nonexistent/c.json] must be a cost file that can be read, as 'dualpipe profile -o /nonexistent/c.json' "
            "writes it");
}

TEST(FitCost, TakesAsManyStagesAsTheyAre) {
  const FittedCost fitted = fit(full_file(), 4);
  EXPECT_EQ(fitted.cost.latency, 0.25);
  EXPECT_EQ(fitted.step_overhead, 12);
  EXPECT_EQ(fitted.note, std::nullopt);
  EXPECT_EQ(fitted.cost.per_stage.at(3), (StageCost{4, 8, 12, 20}));
  EXPECT_EQ(fitted.bytes.at(3), (StageBytes{400, 200, 1200, 28}));
}

TEST(FitCost, SumsNeighbours) {
  const FittedCost fitted = fit(full_file(), 2);
  EXPECT_THAT(fitted.cost.per_stage, ElementsAre(StageCost{3, 6, 9, 15}, StageCost{7, 14, 21, 35}));
  EXPECT_THAT(fitted.bytes, ElementsAre(StageBytes{300, 150, 900, 21}, StageBytes{700, 350, 2100, 49}));
  EXPECT_EQ(fitted.cost.latency, 0.25);
  EXPECT_EQ(fitted.note, std::nullopt);
  EXPECT_EQ(fit(full_file(), 1).cost.per_stage.at(0), (StageCost{10, 20, 30, 50}));
}

TEST(FitCost, DividesEvenlyAndSaysSo) {
  const FittedCost fitted = fit(full_file(), 8);
  EXPECT_EQ(fitted.cost.per_stage.at(0), (StageCost{0.5, 1, 1.5, 2.5}));
  EXPECT_EQ(fitted.cost.per_stage.at(1), (StageCost{0.5, 1, 1.5, 2.5}));
  EXPECT_EQ(fitted.cost.per_stage.at(7), (StageCost{2, 4, 6, 10}));
  EXPECT_EQ(fitted.bytes.at(7), (StageBytes{200, 100, 600, 14}));
  EXPECT_EQ(fitted.note, "each of the 4 stages in my.json is divided evenly in 2");
}

TEST(FitCost, RefusesWhatDoesNotDivide) {
  const auto message = [](int stages) { return refusal_of([stages] { fit(full_file(), stages); }); };
  EXPECT_EQ(
      message(3),
      "[my.json] the number of stages must divide the file's 4 or be a multiple of it, got 3; for example 1 or 4");
  EXPECT_EQ(
      message(6),
      "[my.json] the number of stages must divide the file's 4 or be a multiple of it, got 6; for example 2 or 8");
}

TEST(FitCost, UnknownBytesAreNotGuessedButTheOptimizersAre) {
  CostFile file = full_file();
  for (CostFileStage& stage : file.stages) {
    stage.gradient_bytes.reset();
    stage.optimizer_bytes.reset();
  }
  EXPECT_EQ(fit(file, 4).bytes.at(0), (StageBytes{100, 100, 200, 7}));
  file.stages.back().activation_bytes.reset();
  EXPECT_THAT(fit(file, 4).bytes, IsEmpty());
  file = full_file();
  file.stages.front().parameter_bytes.reset();
  EXPECT_THAT(fit(file, 2).bytes, IsEmpty());
}

// Rank 0 of 1F1B holds P micro-batches at its worst moment, the last rank one; with DualPipe a stage is on two ranks.
TEST(Memory, CountsStateOncePerStageAndActivationsWhileTheyLive) {
  const auto memory = [](const char* schedule, const std::vector<StageBytes>& bytes) {
    return memory_of(builtin_registry().make(schedule, {.pipeline_model_parallel_size = 4, .num_microbatches = 8}),
                     bytes);
  };
  const std::vector<RankMemory> plain = memory("1f1b", fit(full_file(), 4).bytes);
  EXPECT_EQ(plain.at(0).activations, 4 * 7);
  EXPECT_EQ(plain.at(3).activations, 28);
  EXPECT_EQ(plain.at(1).parameters, 200);
  EXPECT_EQ(plain.at(1).total(), 200 + 100 + 600 + 3 * 14);
  const std::vector<RankMemory> both = memory("dualpipe", fit(full_file(), 4).bytes);
  EXPECT_EQ(both.at(0).parameters, 500);
  EXPECT_EQ(both.at(3).parameters, 500);
  EXPECT_EQ(both.at(0).optimizer, 1500);
  const std::vector<RankMemory> even = memory("dualpipe", std::vector<StageBytes>(4, {1, 1, 1, 10}));
  EXPECT_EQ(even.at(0).activations, 5 * 10);
  EXPECT_EQ(refusal_of([&memory] { memory("dualpipe", {}); }),
            "[memory] bytes must have one entry per stage = 4, got 0");
}

}  // namespace
}  // namespace dualpipe
