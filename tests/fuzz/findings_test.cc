// What fuzzing found, each with the refusal that a user now reads.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "examples/pretrain_gpt/config_reader.h"
#include "examples/pretrain_gpt/data/indexed_dataset.h"
#include "examples/pretrain_gpt/measured_layers.h"
#include "examples/pretrain_gpt/overrides.h"
#include "plugin/compare/html_report.h"
#include "plugin/compare/run_files.h"
#include "plugin/schedule/text.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {
namespace {

std::string deep_list(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

// A message that cites such a value goes down it by recursion.
TEST(FuzzFindings, DepthOfRunFilesIsBounded) {
  const TemporaryFolder folder;
  const std::string file = folder.write("metrics.jsonl", R"({"iteration":1,"ms":)" + deep_list(100000) + "}\n");
  EXPECT_EQ(refusal_of([&] { read_metrics(file); }),
            "[" + file + ":1] must have at most 16 objects and lists in each other, got more");
}

TEST(FuzzFindings, DepthOfComparisonsIsBounded) {
  EXPECT_EQ(refusal_of([] { html_report(R"({"format":)" + deep_list(100000) + "}"); }),
            "[report] a comparison must have at most 32 objects and lists in each other, got more");
}

TEST(FuzzFindings, DepthOfMeasuredLayersIsBounded) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("cost.json", R"({"format":"dualpipe-cost","version":1,"layers":[{"name":"0","forward":)" +
                                    deep_list(100000) + "}]}");
  EXPECT_EQ(refusal_of([&] { pretrain_gpt::read_layer_times(file, 1); }),
            "[" + file +
                "] cost_file must have at most 8 objects and lists in each other, got more; 'dualpipe profile' writes "
                "such a file");
}

TEST(FuzzFindings, StagesAreHeldByRanks) {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "timeline_rank0.jsonl",
      R"({"format":"dualpipe-timeline","version":1,"schedule":"x","world_size":1,"rank":0,)"
      R"("pipeline_model_parallel_size":1,"pipeline_rank":0,"num_microbatches":2,"num_stages":65536,"stages":[0]})");
  EXPECT_EQ(refusal_of([&] { read_timelines(folder.path()); }),
            "[" + file + ":1] \"num_stages\" must be at most the number of \"stages\" of all ranks = 1, got 65536");
}

// The parser found empty documents ahead of a comma without end.
TEST(FuzzFindings, WhereNoNodeCanBeginAConfigurationEnds) {
  pretrain_gpt::ConfigReader reader;
  EXPECT_EQ(refusal_of([&] { reader.read_yaml("num_layers: 8\n---\n,?{a", "run.yaml"); }),
            "[run.yaml:3] the file must be YAML, one `key: value` a line, got something else");
  EXPECT_EQ(refusal_of([&] { read_override(reader, "num_layers=,8"); }),
            "[--set num_layers=,8] the file must be YAML, one `key: value` a line, got something else");
}

// A few thousand cells, and tables over all stages and micro-batches of them.
TEST(FuzzFindings, StagesAndMicroBatchesAreInProportionToActions) {
  std::string csv = "0F0";
  for (int i = 1; i < 1000; ++i) csv += "," + std::to_string(i) + "F0,0F" + std::to_string(i);
  EXPECT_EQ(refusal_of([&] { parse_schedule(csv, "plan.csv"); }),
            "[plan.csv] 1000 stages and 1000 micro-batches must have an F each = 1000000, got 1999 actions in all");
}

// Offset + length beyond 2^63 became negative, so that the sequence lay ahead of the file.
TEST(FuzzFindings, SequencesEndBehindTheirStart) {
  const TemporaryFolder folder;
  const auto word = [](std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  const std::string index = std::string("MMIDIDX\0\0", 9) + word(1, 8) + word(5, 1) + word(1, 8) + word(1, 8) +
                            word(0x7FFFFFFF, 4) + word(0x7FFFFFFFFFFFFFF8, 8) + word(0, 8);
  folder.write("data.idx", index);
  folder.write("data.bin", "01234567");
  EXPECT_EQ(refusal_of([&] { pretrain_gpt::IndexedDataset(folder.file("data")); }),
            "[" + folder.file("data.bin") + "] must hold 9223372036854775807 bytes as " + folder.file("data.idx") +
                " says, got a file of 8 bytes; make the data again with `pretrain_gpt prepare-data`");
}

}  // namespace
}  // namespace dualpipe
