#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/run_program.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(Overlap, ShowsWhatTravelsBesideWhat) {
  const Outcome run = run_dualpipe("overlap --layers 2 --dense-layers 1 --all-to-all 0.9");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, R"(computes        | travels beside it
----------------+------------------
take gradients
take inputs
0.attention(F)  | 1.combine(B)
1.mlp(I)
1.mlp(W)        | 1.dispatch(B)
0.mlp(F)        | 1.dispatch(B)
1.attention(I)
1.attention(W)
1.attention(F)
0.mlp(I)        | 1.dispatch(F)
0.mlp(W)        | 1.dispatch(F)
1.mlp(F)
0.attention(I)  | 1.combine(F)
send outputs
send gradients
0.attention(W)

compute     12
all-to-all  3.6
exposed     0; 0.0% of all-to-all
sequence    15.6
merged      12; 1.30x as fast
in a row    12
for plan    --cost forward=5.8,backward_input=5.8,backward_weight=4,overlapped=12
)");
}

TEST(Overlap, NothingTravelsInADenseChunk) {
  const Outcome run = run_dualpipe("overlap --layers 1 --dense-layers 1");
  EXPECT_EQ(run.out, R"(computes
--------
take inputs
0.attention(F)
take gradients
0.mlp(I)
0.mlp(W)
0.mlp(F)
send outputs
0.attention(I)
send gradients
0.attention(W)

compute     6
all-to-all  0
exposed     0
sequence    6
merged      6; 1.00x as fast
in a row    6
for plan    --cost forward=2,backward_input=2,backward_weight=2,overlapped=6
)");
}

TEST(Overlap, JsonHasStepsTimesAndFigures) {
  const Outcome run = run_dualpipe("overlap --layers 4 --all-to-all 0.5 --split-sizes 0.05 --format json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["steps"][0], "take gradients");
  EXPECT_EQ(json["steps"][1], "post 3.combine(B)");
  EXPECT_EQ(json["spans"][1]["name"], "0.attention(F)");
  EXPECT_EQ(json["spans"].size(), 24u + 16u + 4u);
  EXPECT_EQ(json["compute"], 24);
  EXPECT_NEAR(json["all_to_all"].get<double>(), 8.2, 1e-9);
  EXPECT_NEAR(json["exposed"].get<double>(), 0, 1e-9);
  EXPECT_NEAR(json["sequence"].get<double>(), 32.2, 1e-9);
  EXPECT_NEAR(json["merged"].get<double>(), 24, 1e-9);
  EXPECT_NEAR(json["in_a_row"].get<double>(), 24, 1e-9);
  EXPECT_EQ(json["cost"], "forward=12.2,backward_input=12,backward_weight=8,overlapped=24");
  EXPECT_EQ(json.size(), 9u);
}

TEST(Overlap, SlowdownIsPredicted) {
  const auto exposed = [](const std::string& slowdown) {
    const Outcome run = run_dualpipe("overlap --layers 4 --all-to-all 0.5 --format json --slowdown " + slowdown);
    return nlohmann::json::parse(run.out)["exposed"].get<double>();
  };
  // 8 of all-to-all, beside which compute loses a fifth of its speed.
  EXPECT_NEAR(exposed("1.25"), 8 * 0.2, 1e-9);
  EXPECT_NEAR(exposed("1"), 0, 1e-9);
}

TEST(Overlap, PlanTakesItsCosts) {
  const auto json = nlohmann::json::parse(run_dualpipe("overlap --all-to-all 0.9 --format json").out);
  const Outcome plan =
      run_dualpipe("plan -s dualpipe -P 4 -M 16 --format json --cost " + json["cost"].get<std::string>());
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
}

TEST(Overlap, WritesAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("overlap.txt");
  EXPECT_THAT(run_dualpipe("overlap -o " + path).out, IsEmpty());
  EXPECT_EQ(read_text(path), run_dualpipe("overlap").out);
}

TEST(Overlap, RefusesMistakesWithOneMessage) {
  const struct {
    const char* arguments;
    const char* message;
  } calls[] = {
      {"--layers 0", "[overlap] --layers must be from 1 to 1000, got 0"},
      {"--layers four", "four"},
      {"--layers 4 --dense-layers 5", "[overlap] --dense-layers must be from 0 to --layers = 4, got 5"},
      {"--attention 1,1",
       "[overlap] --attention must be three finite numbers of at least 0 for F, I and W, such as 1,1,1, got '1,1'"},
      {"--mlp 1,-1,1",
       "[overlap] --mlp must be three finite numbers of at least 0 for F, I and W, such as 1,1,1, got '1,-1,1'"},
      {"--all-to-all nan",
       "[overlap] --all-to-all must be one finite number of at least 0, or two for dispatch and combine, such as 0.9 "
       "or "
       "0.5,1, got 'nan'"},
      {"--all-to-all 1,1,1", "got '1,1,1'"},
      {"--split-sizes x", "[overlap] --split-sizes must be a finite number of at least 0, such as 0.05, got 'x'"},
      {"--slowdown 0.5", "[overlap] --slowdown must be from 1 (none) to 1e6, got 0.5"},
      {"--slowdown nan", "[overlap] --slowdown must be from 1 (none) to 1e6, got nan"},
      {"--format xml", "xml"},
      {"-o /nonexistent/overlap.txt", "[output] cannot write '/nonexistent/overlap.txt': No such file or directory"},
  };
  for (const auto& [arguments, message] : calls) {
    const Outcome run = run_dualpipe(std::string("overlap ") + arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(message)) << arguments;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << arguments << "\n" << run.err;
    EXPECT_THAT(run.out, IsEmpty()) << arguments;
  }
}

}  // namespace
}  // namespace dualpipe
