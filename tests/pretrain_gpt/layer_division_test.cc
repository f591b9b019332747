#include "examples/pretrain_gpt/layer_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

using testing::ElementsAre;

Config config_of(std::int64_t layers, std::vector<std::int64_t> counts = {}) {
  Config config;
  config.num_layers = layers;
  config.pipeline_layer_counts = std::move(counts);
  return config;
}

std::vector<std::int64_t> counts_of(const Config& config, int stages) {
  std::vector<std::int64_t> counts;
  for (const Chunk& chunk : divide_layers(config, stages)) {
    counts.push_back(chunk.num_layers);
  }
  return counts;
}

std::string refusal(const Config& config, int stages) {
  try {
    divide_layers(config, stages);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LayerDivision, GivesEachStageItsPlace) {
  EXPECT_THAT(
      divide_layers(config_of(5, {2, 1, 2}), 3),
      ElementsAre(Chunk{0, 3, 0, 2, true, false}, Chunk{1, 3, 2, 1, false, false}, Chunk{2, 3, 3, 2, false, true}));
}

TEST(LayerDivision, OneStageIsTheWholeModel) {
  EXPECT_THAT(divide_layers(config_of(5), 1), ElementsAre(whole_model(config_of(5))));
}

TEST(LayerDivision, IsEvenWhereItCanBe) {
  EXPECT_THAT(counts_of(config_of(8), 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts_of(config_of(8), 8), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(LayerDivision, TheHeadWeighsIn) {
  Config config = config_of(8);
  config.vocab_size = 2048;  // The head costs three layers.
  EXPECT_THAT(counts_of(config, 2), ElementsAre(5, 3));
}

TEST(FieldReport83, UnevenLayersAreAllAssigned) {
  EXPECT_THAT(counts_of(config_of(7), 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(counts_of(config_of(24, {11, 5, 4, 4}), 4), ElementsAre(11, 5, 4, 4));
}

TEST(FieldReport83, ListsCountsWhereLayersAreLeftOver) {
  EXPECT_EQ(
      refusal(config_of(24, {11, 11}), 4),
      "[pipeline_layer_counts] must list 4 stages whose layers add up to num_layers = 24, got [11, 11]: 22 layers "
      "over 2 stages; for example [6, 6, 6, 6]");
  EXPECT_EQ(refusal(config_of(24, {11, 1, 1, 1}), 4),
            "[pipeline_layer_counts] must list 4 stages whose layers add up to num_layers = 24, got [11, 1, 1, 1]: 14 "
            "layers over 4 stages; for example [6, 6, 6, 6]");
  EXPECT_EQ(
      refusal(config_of(2, {2}), 4),
      "[pipeline_layer_counts] must list 4 stages whose layers add up to num_layers = 2, got [2]: 2 layers over 1 "
      "stages; raise num_layers to at least 4");
}

TEST(FieldReport83, RefusesFewerLayersThanStages) {
  EXPECT_EQ(
      refusal(config_of(3), 4),
      "[num_layers] must be at least the number of stages = 4, got 3: 1 stages would hold no layer; for example 4");
}

// The head costs as much as a dense layer and a half, but less than half of one with experts.
TEST(LayerDivision, CountsTheExpertsThatATokenMeets) {
  Config config;
  config.num_layers = 6;
  config.hidden_size = 16;
  config.ffn_hidden_size = 32;
  config.seq_length = 16;
  config.vocab_size = 256;
  const auto last = [&config] { return divide_layers(config, 2).back().num_layers; };
  EXPECT_EQ(last(), 2);
  config.num_experts = 64;
  config.moe_router_topk = 8;
  config.moe_ffn_hidden_size = 32;
  EXPECT_EQ(last(), 3);
}

}  // namespace
}  // namespace pretrain_gpt
