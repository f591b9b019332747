// Reading of run files: what is right, and what is not, told by file and line.
#include "plugin/compare/run_files.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "plugin/compare/measured_steps.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kMetrics =
    "{\"iteration\":1,\"lm_loss\":5.5,\"grad_norm\":2,\"lr\":0.1,\"ms\":12.5,\"tokens_per_second\":3}\n"
    "{\"iteration\":2,\"lm_loss\":null,\"grad_norm\":1.5,\"ms\":11}\n";

std::string header(int rank, int world_size = 2, int pipeline_size = 2, int pipeline_rank = -1) {
  const std::string place = std::to_string(pipeline_rank < 0 ? rank : pipeline_rank);
  return "{\"format\":\"dualpipe-timeline\",\"version\":1,\"schedule\":\"1f1b\",\"rank\":" + std::to_string(rank) +
         ",\"world_size\":" + std::to_string(world_size) + ",\"pipeline_rank\":" + place +
         ",\"pipeline_model_parallel_size\":" + std::to_string(pipeline_size) +
         ",\"num_microbatches\":2,\"num_stages\":" + std::to_string(pipeline_size) + ",\"stages\":[" + place +
         "],\"parameter_bytes\":1e6}\n";
}

std::string step(int iteration, const std::string& began, const std::string& spans, const std::string& more = "") {
  return "{\"iteration\":" + std::to_string(iteration) + ",\"began\":" + began + ",\"seconds\":0.5,\"spans\":" + spans +
         more + "}\n";
}

const std::string kSpans0 = R"([["0F0",0.1,0.2],["0F1",0.2,0.3],["0B0",0.4,0.6],["0B1",0.6,0.8]])";
const std::string kSpans1 = R"([["1F0",0.0,0.1],["1B0",0.1,0.3],["1F1",0.3,0.4],["1B1",0.4,0.6]])";

class RunFilesTest : public testing::Test {
 protected:
  void write_two_ranks(const std::string& more = "") const {
    folder_.write("metrics.jsonl", kMetrics);
    folder_.write("timeline_rank0.jsonl", header(0) + step(2, "100.5", kSpans0, more));
    folder_.write("timeline_rank1.jsonl", header(1) + step(2, "100.75", kSpans1));
  }

  TemporaryFolder folder_;
};

TEST_F(RunFilesTest, GiveTheirValues) {
  write_two_ranks(
      R"(,"phases":[["0F0 0.attention",0.1,0.15],["0F0 0.dispatch",0.15,0.2,0.04]],"exchange_seconds":0.05,)"
      R"("exposed_seconds":0.04,"peak_activations":2,"peak_activation_bytes":4096,"memory":[[0.5,0],[0.1,4096]])");
  const RunFiles run = read_run(folder_.path());
  ASSERT_EQ(run.iterations.size(), 2u);
  EXPECT_EQ(run.iterations[0].lm_loss, 5.5);
  EXPECT_EQ(run.iterations[0].ms, 12.5);
  EXPECT_TRUE(std::isnan(run.iterations[1].lm_loss));
  ASSERT_EQ(run.ranks.size(), 2u);
  EXPECT_EQ(run.ranks[1].rank, 1);
  EXPECT_EQ(run.ranks[0].parameter_bytes, 1e6);
  EXPECT_FALSE(run.ranks[0].optimizer_bytes);
  const RecordedStep& recorded = run.ranks[0].steps.at(0);
  EXPECT_EQ(recorded.iteration, 2);
  EXPECT_EQ(to_string(recorded.spans[2].action), "0B0");
  EXPECT_EQ(recorded.spans[2].end, 0.6);
  EXPECT_FALSE(recorded.phases[0].waited);
  EXPECT_EQ(recorded.phases[1].waited, 0.04);
  EXPECT_EQ(recorded.exposed_seconds, 0.04);
  EXPECT_EQ(recorded.peak_activations, 2);
  EXPECT_EQ(recorded.memory[0].bytes, 4096);  // In the order of time.
}

TEST_F(RunFilesTest, MaySayWhatAnActionWaited) {
  write_two_ranks();
  folder_.write("timeline_rank1.jsonl", header(1) + step(2, "100.75", R"([["1F0",0.0,0.1],["1B0",0.1,0.3,0.05]])"));
  const std::vector<MeasuredStep> steps = measured_steps(read_run(folder_.path()));
  EXPECT_EQ(steps.at(0).timeline.ranks[1][0].waited, 0);
  EXPECT_EQ(steps.at(0).timeline.ranks[1][1].waited, 0.05);
}

TEST_F(RunFilesTest, MayLackNorms) {
  folder_.write(
      "metrics.jsonl",
      "{\"iteration\":1,\"lm_loss\":1,\"ms\":1}\n{\"iteration\":2,\"lm_loss\":1,\"grad_norm\":null,\"ms\":1}\n");
  const RunFiles run = read_run(folder_.path());
  EXPECT_FALSE(run.iterations[0].grad_norm);
  EXPECT_TRUE(std::isnan(run.iterations[1].grad_norm.value()));
}

TEST_F(RunFilesTest, MayLackTimelines) {
  folder_.write("metrics.jsonl", kMetrics);
  EXPECT_THAT(read_run(folder_.path()).ranks, IsEmpty());
}

TEST_F(RunFilesTest, ReadALastLineWithoutItsEnd) {
  folder_.write("metrics.jsonl", "{\"iteration\":1,\"lm_loss\":1,\"grad_norm\":1,\"ms\":1}");
  EXPECT_EQ(read_run(folder_.path()).iterations.size(), 1u);
}

TEST_F(RunFilesTest, RefuseMetricsThatAreWrong) {
  struct Case {
    const char* text;
    const char* message;  // Behind the file's name.
  };
  const std::string first = "{\"iteration\":1,\"lm_loss\":1,\"grad_norm\":1,\"ms\":1}\n";
  const Case cases[] = {
      {"", "] must hold a JSON object per line, got an empty file"},
      {"{\"iteration\":2,\"lm_lo",
       ":2] the last line is cut off: the run ended while it wrote it, got: "
       "{\"iteration\":2,\"lm_lo"},
      {"no json\n", ":2] must be a JSON object on one line, with null for numbers that are not finite, got: no json"},
      {"{\"iteration\":2,\"lm_loss\":NaN}\n", ":2] must be a JSON object on one line, with null for numbers"},
      {"[1]\n", ":2] must be a JSON object on one line"},
      {"\n", ":2] must be a JSON object on one line"},
      {"{\"lm_loss\":1,\"grad_norm\":1,\"ms\":1}\n", ":2] \"iteration\" is missing"},
      {"{\"iteration\":1.5,\"ms\":1}\n",
       ":2] \"iteration\" must be a whole number from 1 to 9007199254740992, got 1.5"},
      {"{\"iteration\":18446744073709551615,\"ms\":1}\n", ":2] \"iteration\" must be a whole number from 1"},
      {"{\"iteration\":0,\"ms\":1}\n", ":2] \"iteration\" must be a whole number from 1"},
      {"{\"iteration\":1,\"lm_loss\":1,\"grad_norm\":1,\"ms\":1}\n",
       ":2] \"iteration\" must be above that of the line before = 1, got 1"},
      {"{\"iteration\":2,\"lm_loss\":\"low\",\"ms\":1}\n", ":2] \"lm_loss\" must be a number, got \"low\""},
      {"{\"iteration\":2,\"lm_loss\":1,\"grad_norm\":1}\n", ":2] \"ms\" is missing"},
      {"{\"iteration\":2,\"lm_loss\":1,\"grad_norm\":1,\"ms\":null}\n", ":2] \"ms\" must be a number, got null"},
      {"{\"iteration\":2,\"lm_loss\":1,\"grad_norm\":1,\"ms\":-1}\n", ":2] \"ms\" must be at least 0.0, got -1"},
      {"{\"iteration\":2,\"lm_loss\":1e999,\"grad_norm\":1,\"ms\":1}\n", ":2] must be a JSON object"},
  };
  for (const Case& c : cases) {
    folder_.write("metrics.jsonl", *c.text == '\0' ? "" : first + c.text);
    EXPECT_THAT(refusal_of([&] { read_run(folder_.path()); }),
                HasSubstr("[" + folder_.file("metrics.jsonl") + c.message))
        << c.text;
  }
  folder_.write("metrics.jsonl", first + std::string("\xff\xfe\0", 3) + "\n");
  EXPECT_THAT(refusal_of([&] { read_run(folder_.path()); }), HasSubstr("metrics.jsonl:2] must be a JSON object"));
}

TEST_F(RunFilesTest, RefuseAFolderWithoutMetrics) {
  EXPECT_EQ(refusal_of([&] { read_run(folder_.path()); }),
            "[" + folder_.file("metrics.jsonl") + "] must be a file that can be read, got none");
  std::filesystem::create_directory(folder_.file("metrics.jsonl"));
  EXPECT_THAT(refusal_of([&] { read_run(folder_.path()); }), HasSubstr("must be a file that can be read, got none"));
}

TEST_F(RunFilesTest, RefuseStepsThatAreWrong) {
  struct Case {
    std::string line;
    const char* message;
  };
  const Case cases[] = {
      {step(3, "1", R"([["0F9",0,1]])"),
       "\"spans\" must be F, B, I, W or pairs of stages below 2 and micro-batches "
       "below 2, got 0F9"},
      {step(3, "1", R"([["2F0",0,1]])"), "stages below 2 and micro-batches below 2, got 2F0"},
      {step(3, "1", R"([["(0F0;7B1)OVERLAP_F_B",0,1]])"), "below 2, got 7B1"},
      {step(3, "1", R"([["0SEND_F0",0,1]])"), "\"spans\" must be F, B, I, W or pairs"},
      {step(3, "1", R"([["0X0",0,1]])"), "0X0"},
      {step(3, "1", R"([["0F0",1,0.5]])"), "\"spans\" must be rows whose end is not before their start, got "},
      {step(3, "1", R"([["0F0",0]])"), "\"spans\" must be rows of a name and numbers, got [\"0F0\",0]"},
      {step(3, "1", R"([["0F0",0,1,2]])"), "\"spans\" must be rows that waited from 0 to all of their time, got "},
      {step(3, "1", R"([["0F0","0",1]])"), "\"spans\" must be rows of a name and numbers"},
      {step(3, "1", R"({"0F0":1})"), "\"spans\" must be a list"},
      {step(3, "\"now\"", "[]"), "\"began\" must be a number, got \"now\""},
      {step(2, "1", "[]"), "\"iteration\" must be above that of the line before = 2, got 2"},
      {step(3, "1", "[]", R"(,"phases":[["0F0 a",0,1,2,3]])"), "\"phases\" must be rows of a name and numbers"},
      {step(3, "1", "[]", R"(,"memory":[[0]])"), "\"memory\" must be rows of seconds and bytes, got [0]"},
      {step(3, "1", "[]", R"(,"exposed_seconds":-1)"), "\"exposed_seconds\" must be at least 0.0, got -1"},
      {step(3, "1", "[]", R"(,"peak_activations":1e30)"), "\"peak_activations\" must be a whole number"},
      {"{\"iteration\":3,", "the last line is cut off"},
  };
  for (const Case& c : cases) {
    write_two_ranks();
    folder_.write("timeline_rank0.jsonl", header(0) + step(2, "1", kSpans0) + c.line);
    const std::string message = refusal_of([&] { read_run(folder_.path()); });
    EXPECT_THAT(message, HasSubstr("[" + folder_.file("timeline_rank0.jsonl") + ":3] ")) << c.line;
    EXPECT_THAT(message, HasSubstr(c.message)) << c.line;
  }
}

TEST_F(RunFilesTest, RefuseHeadersThatAreWrong) {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = header(1);
    text.replace(text.find(from), from.size(), to);
    write_two_ranks();
    folder_.write("timeline_rank1.jsonl", text);
    return refusal_of([&] { read_run(folder_.path()); });
  };
  const std::string place = "[" + folder_.file("timeline_rank1.jsonl") + ":1] ";
  EXPECT_EQ(with("\"version\":1", "\"version\":2"),
            place +
                "must be {\"format\":\"dualpipe-timeline\",\"version\":1,...}, got format \"dualpipe-timeline\" of "
                "another kind or version");
  EXPECT_THAT(with("\"rank\":1,\"w", "\"rank\":0,\"w"),
              HasSubstr(place + "\"rank\" must be that of the file's name = 1"));
  EXPECT_THAT(with("\"rank\":1,\"w", "\"rank\":2,\"w"),
              HasSubstr("\"rank\" must be a whole number from 0 to 1, got 2"));
  EXPECT_THAT(with("world_size\":2", "world_size\":3"),
              HasSubstr(place + "\"world_size\" must be rank 0's = 2, got 3"));
  EXPECT_THAT(with("num_microbatches\":2", "num_microbatches\":4"), HasSubstr("must be rank 0's = 2, got 4"));
  EXPECT_THAT(with("1f1b", "zb1p"), HasSubstr("\"schedule\" must be rank 0's = \"1f1b\", got \"zb1p\""));
  EXPECT_THAT(with("\"stages\":[1]", "\"stages\":[2]"), HasSubstr("whole numbers below num_stages = 2, got 2"));
  EXPECT_THAT(with("\"stages\":[1]", "\"stages\":1"), HasSubstr("\"stages\" must be a list, got 1"));
  EXPECT_THAT(with("\"pipeline_rank\":1", "\"pipeline_rank\":0"),
              HasSubstr("must name each pipeline_rank below 2 equally often, got one 0 times and another 2 times"));
  EXPECT_THAT(with("1e6", "-1"), HasSubstr("\"parameter_bytes\" must be at least 0.0, got -1"));
}

TEST_F(RunFilesTest, RefuseMissingRanks) {
  write_two_ranks();
  std::filesystem::remove(folder_.file("timeline_rank1.jsonl"));
  EXPECT_EQ(refusal_of([&] { read_run(folder_.path()); }),
            "[" + folder_.file("timeline_rank1.jsonl") + "] must be there beside the other ranks' files, got none");
  write_two_ranks();
  std::filesystem::remove(folder_.file("timeline_rank0.jsonl"));
  EXPECT_THAT(refusal_of([&] { read_run(folder_.path()); }), HasSubstr("timeline_rank0.jsonl] must be there"));
}

TEST_F(RunFilesTest, MakeOneTimelineOnOneClock) {
  write_two_ranks();
  const RunFiles run = read_run(folder_.path());
  const std::vector<MeasuredStep> steps = measured_steps(run);
  ASSERT_EQ(steps.size(), 1u);
  const Timeline& timeline = steps[0].timeline;
  // Rank 0 began its first action at 100.6, rank 1 at 100.75.
  EXPECT_NEAR(timeline.ranks[0][0].start, 0, 1e-9);
  EXPECT_NEAR(timeline.ranks[1][0].start, 0.15, 1e-9);
  EXPECT_NEAR(timeline.ranks[1][3].end, 0.75, 1e-9);
  EXPECT_NEAR(timeline.makespan(), 0.75, 1e-9);
  EXPECT_THAT(timeline.peak_activations, ElementsAre(2, 1));
  EXPECT_NEAR(steps[0].offsets[1], 0.15, 1e-9);
  const Schedule schedule = measured_schedule(steps[0], "1f1b");
  EXPECT_EQ(schedule.num_microbatches, 2);
  EXPECT_EQ(schedule.placement, Placement::loop(2));
  EXPECT_EQ(print_row(schedule.rows[1]), "1F0,1B0,1F1,1B1");
}

// Ranks 0 and 1 are the first of their pipelines, 2 and 3 the second, as Megatron has them.
TEST_F(RunFilesTest, AreDividedIntoPipelines) {
  folder_.write("metrics.jsonl", kMetrics);
  for (int rank = 0; rank < 4; ++rank) {
    folder_.write("timeline_rank" + std::to_string(rank) + ".jsonl",
                  header(rank, 4, 2, rank / 2) + step(1, "10", rank < 2 ? kSpans0 : kSpans1) +
                      (rank == 3 ? "" : step(2, "11", rank < 2 ? kSpans0 : kSpans1)));
  }
  const RunFiles run = read_run(folder_.path());
  const std::vector<MeasuredStep> steps = measured_steps(run);
  ASSERT_EQ(steps.size(), 3u);  // Rank 3 has not recorded the second.
  EXPECT_THAT(steps[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(steps[1].ranks, ElementsAre(1, 3));
  EXPECT_THAT(steps[2].ranks, ElementsAre(0, 2));
  EXPECT_EQ(steps[2].iteration, 2);
}

}  // namespace
}  // namespace dualpipe
