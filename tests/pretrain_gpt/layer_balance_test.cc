#include "examples/pretrain_gpt/layer_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <tuple>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/measured_layers.h"

namespace pretrain_gpt {
namespace {

using testing::ElementsAre;

using Counts = std::vector<std::int64_t>;

std::vector<double> stage_times(const LayerTimes& times, const Counts& counts) {
  std::vector<double> stages;
  std::size_t layer = 0;
  for (const std::int64_t count : counts) {
    stages.push_back(0);
    for (std::int64_t i = 0; i < count; ++i) {
      stages.back() += times.layers.at(layer++);
    }
  }
  stages.front() += times.embedding;
  stages.back() += times.head;
  return stages;
}

// What balance() promises to make least, in this order.
using Merit = std::tuple<double, double, double>;

Merit merit_of(const LayerTimes& times, const Counts& counts, StagePlaces places) {
  const std::vector<double> stages = stage_times(times, counts);
  double rank = 0, squares = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const double partner = places == StagePlaces::kFolded ? stages[stages.size() - 1 - stage] : 0;
    rank = std::max(rank, stages[stage] + partner);
    squares += stages[stage] * stages[stage];
  }
  return {rank, *std::max_element(stages.begin(), stages.end()), squares};
}

void for_each_division(std::int64_t layers, int stages, Counts& counts, const std::function<void()>& visit) {
  if (stages == 1) {
    counts.push_back(layers);
    visit();
    counts.pop_back();
    return;
  }
  for (std::int64_t count = 1; count + stages - 1 <= layers; ++count) {
    counts.push_back(count);
    for_each_division(layers - count, stages - 1, counts, visit);
    counts.pop_back();
  }
}

Merit best_of_all(const LayerTimes& times, int stages, StagePlaces places) {
  std::optional<Merit> best;
  Counts counts;
  for_each_division(static_cast<std::int64_t>(times.layers.size()), stages, counts, [&] {
    const Merit merit = merit_of(times, counts, places);
    best = best ? std::min(*best, merit) : merit;
  });
  return *best;
}

// Quarters, so that sums are exact in any order.
LayerTimes any_times(std::mt19937& random, int layers) {
  const auto any = [&random](int most) { return static_cast<double>(random() % (most + 1)) / 4; };
  LayerTimes times;
  times.embedding = any(8);
  times.head = any(24);
  for (int layer = 0; layer < layers; ++layer) {
    times.layers.push_back(any(12));
  }
  return times;
}

TEST(LayerBalance, IsTheBestOfAllDivisions) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const int layers = 1 + static_cast<int>(random() % 10);
    const int stages = 1 + static_cast<int>(random() % layers);
    const StagePlaces places = stages % 2 == 0 && random() % 2 == 0 ? StagePlaces::kFolded : StagePlaces::kApart;
    const LayerTimes times = any_times(random, layers);
    const Counts counts = balance(times, stages, places);
    ASSERT_EQ(static_cast<int>(counts.size()), stages);
    EXPECT_EQ(merit_of(times, counts, places), best_of_all(times, stages, places))
        << testing::PrintToString(counts) << " of " << testing::PrintToString(times.layers) << ", embedding "
        << times.embedding << ", head " << times.head << ", folded " << (places == StagePlaces::kFolded);
  }
}

TEST(LayerBalance, EqualLayersAreDividedEvenly) {
  EXPECT_THAT(balance({0, std::vector<double>(8, 1.5), 0}, 4, StagePlaces::kApart), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(balance({0, std::vector<double>(8, 1.5), 0}, 4, StagePlaces::kFolded), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(balance({0, std::vector<double>(7, 1), 0}, 4, StagePlaces::kApart), ElementsAre(1, 2, 2, 2));
  EXPECT_THAT(balance({3, {1}, 4}, 1, StagePlaces::kApart), ElementsAre(1));
}

// The head takes as long as three layers. Apart, its stage gets fewer layers; folded, so does its partner.
TEST(LayerBalance, AHeavyHeadGetsFewerLayers) {
  const LayerTimes times{0, std::vector<double>(13, 1), 3};
  EXPECT_THAT(balance(times, 4, StagePlaces::kApart), ElementsAre(4, 4, 4, 1));
  EXPECT_THAT(balance(times, 4, StagePlaces::kFolded), ElementsAre(4, 4, 4, 1));
  const LayerTimes heavier{0, std::vector<double>(14, 1), 6};
  EXPECT_THAT(balance(heavier, 4, StagePlaces::kApart), ElementsAre(4, 4, 5, 1));
  EXPECT_THAT(balance(heavier, 4, StagePlaces::kFolded), ElementsAre(3, 5, 5, 1));
}

TEST(LayerBalance, LargeModelsTakeAMoment) {
  std::mt19937 random(2);
  LayerTimes times = any_times(random, 256);
  for (double& time : times.layers) {
    time += 4;
  }
  for (const StagePlaces places : {StagePlaces::kApart, StagePlaces::kFolded}) {
    const Counts counts = balance(times, 32, places);
    const std::vector<double> stages = stage_times(times, counts);
    const Merit even = merit_of(times, Counts(32, 8), places);
    EXPECT_LT(merit_of(times, counts, places), even);
  }
}

class CostFileOnDisk {
 public:
  explicit CostFileOnDisk(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("layers_" + std::to_string(getpid()) + ".json")) {
    std::ofstream(path_) << text;
  }
  ~CostFileOnDisk() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string layer(const std::string& name, double each) {
  const std::string time = std::to_string(each);
  return R"({"name":")" + name + R"(","forward":)" + time + R"(,"backward_input":)" + time + R"(,"backward_weight":)" +
         time + "}";
}

std::string cost_file(const std::string& layers) {
  return R"({"format":"dualpipe-cost","version":1,"unit":"ms","stages":[])" + layers + "}";
}

TEST(MeasuredLayers, AreReadFromACostFile) {
  const CostFileOnDisk file(cost_file(",\"layers\":[" + layer("embedding", 0.5) + "," + layer("0", 1) + "," +
                                      layer("1", 2) + "," + layer("head", 4) + "]"));
  EXPECT_EQ(read_layer_times(file.path(), 2), (LayerTimes{1.5, {3, 6}, 12}));
  const CostFileOnDisk bare(cost_file(",\"layers\":[" + layer("0", 1) + "]"));
  EXPECT_EQ(read_layer_times(bare.path(), 1), (LayerTimes{0, {3}, 0}));
}

TEST(MeasuredLayers, DivideTheModel) {
  const CostFileOnDisk file(cost_file(",\"layers\":[" + layer("embedding", 0) + "," + layer("0", 1) + "," +
                                      layer("1", 1) + "," + layer("2", 1) + "," + layer("3", 1) + "," +
                                      layer("head", 2) + "]"));
  const std::string yaml = "num_layers: 4\nbalance: measured\ncost_file: " + file.path().string();
  const Config config = parse_config(yaml, "gpt.yaml");
  const std::vector<Chunk> chunks = divide_layers(config, 2);
  EXPECT_EQ(chunks.at(0).num_layers, 3);
  EXPECT_EQ(chunks.at(1), (Chunk{1, 2, 3, 1, false, true}));
  EXPECT_EQ(divide_layers(parse_config(yaml, "gpt.yaml", {"balance=even"}), 2).at(0).num_layers, 2);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MeasuredLayers, RefusesWhatIsNoDivision) {
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"no JSON",
       "cost_file must be JSON with \"format\": \"dualpipe-cost\" and \"version\": 1, got something else; 'dualpipe "
       "profile' writes such a file"},
      {R"({"format":"dualpipe-cost","version":2})",
       "cost_file must be JSON with \"format\": \"dualpipe-cost\" and \"version\": 1, got something else; 'dualpipe "
       "profile' writes such a file"},
      {cost_file(""),
       "layers must be a list with balance: measured, got none; 'dualpipe profile --config' writes one, --command only "
       "where the host tells its layers"},
      {cost_file(",\"layers\":[" + layer("0", 1) + "]"),
       "layers must be num_layers = 2 between embedding and head, got 1; profile this model"},
      {cost_file(",\"layers\":[3]"), "layers[0] must be an object with a name, such as \"embedding\""},
      {cost_file(R"(,"layers":[{"name":"0","forward":1}])"),
       "layers[0].backward_input must be a finite number of at least 0, such as 1.5, got nothing"},
      {cost_file(",\"layers\":[" + layer("0", 1) + "," + layer("1", -1) + "]"),
       "layers[1].forward must be a finite number of at least 0, such as 1.5, got -1.0"},
  };
  for (const auto& [text, message] : cases) {
    const CostFileOnDisk file(text);
    EXPECT_EQ(refusal([&] { read_layer_times(file.path(), 2); }), "[" + file.path().string() + "] " + message) << text;
  }
  EXPECT_EQ(
      refusal([] { read_layer_times("/nonexistent/c.json", 2); }),
      "[/nonexistent/c.json] cost_file must be a file that can be read with balance: measured; 'dualpipe profile' "
      "writes such a file");
}

TEST(MeasuredLayers, NeedACostFileAndNoCounts) {
  EXPECT_EQ(
      refusal([] { parse_config("balance: measured", "gpt.yaml"); }),
      "[config] balance must be even without a cost_file, got balance = measured (gpt.yaml:1); for example cost_file: "
      "output/profile/cost.json");
  EXPECT_EQ(
      refusal([] { parse_config("balance: measured\ncost_file: c.json\npipeline_layer_counts: [4, 4]", "g.yaml"); }),
      "[config] balance must be even with pipeline_layer_counts, got balance = measured (g.yaml:1), with "
      "pipeline_layer_counts = [4, 4] (g.yaml:3); for example even");
  EXPECT_EQ(refusal([] { parse_config("balance: uneven", "gpt.yaml"); }),
            "[gpt.yaml:1] balance must be even or measured, got 'uneven'; for example even");
}

}  // namespace
}  // namespace pretrain_gpt
