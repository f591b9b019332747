#include "examples/pretrain_gpt/parallel/rank_layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

using Groups = std::vector<std::vector<int>>;

// The example that Megatron-Core documents at initialize_model_parallel: 16 ranks, tensor 2, pipeline 4.
TEST(RankLayout, MegatronsExampleOf16Ranks) {
  const RankLayout layout({.tensor = 2, .data = 2, .pipeline = 4});
  EXPECT_EQ(layout.world_size(), 16);
  EXPECT_EQ(layout.groups(GroupKind::kData),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(layout.groups(GroupKind::kTensor),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(layout.groups(GroupKind::kPipeline),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
}

// The one at generate_masked_orthogonal_rank_groups: tensor 2, data 3, pipeline 4.
TEST(RankLayout, MegatronsExampleOf24Ranks) {
  const Groups data = RankLayout({.tensor = 2, .data = 3, .pipeline = 4}).groups(GroupKind::kData);
  EXPECT_EQ(
      data,
      (Groups{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}, {12, 14, 16}, {13, 15, 17}, {18, 20, 22}, {19, 21, 23}}));
}

// Expert-parallel ranks are data-parallel ranks of the dense layers.
TEST(RankLayout, ExpertsOnDataParallelRanks) {
  const RankLayout layout({.data = 4, .pipeline = 2, .expert = 2});
  EXPECT_EQ(layout.groups(GroupKind::kData), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpert), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpertData), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpertTensor), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(RankLayout, ExpertsDividedAsDenseMatricesAre) {
  const RankLayout layout({.tensor = 2, .data = 2, .pipeline = 2, .expert = 2, .expert_tensor = 2});
  EXPECT_EQ(layout.groups(GroupKind::kExpert), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpertTensor), layout.groups(GroupKind::kTensor));
  EXPECT_EQ(layout.groups(GroupKind::kExpertData), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(layout.groups(GroupKind::kTensorData), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kEmbeddingData), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

// expert_tensor 1: tensor ranks have different experts, or other copies of them.
TEST(RankLayout, WholeExpertsOnTensorRanks) {
  const RankLayout layout({.tensor = 2, .data = 2, .pipeline = 2, .expert = 2});
  EXPECT_EQ(layout.groups(GroupKind::kExpert), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpertData), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(RankLayout, MirrorsAreDataParallelToo) {
  const RankLayout layout({.data = 2, .pipeline = 4, .expert = 2, .mirrored = true});
  EXPECT_EQ(layout.groups(GroupKind::kData), (Groups{{0, 1, 6, 7}, {2, 3, 4, 5}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpertData), (Groups{{0, 6}, {1, 7}, {2, 4}, {3, 5}}));
  EXPECT_EQ(layout.groups(GroupKind::kExpert), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  const RankLayout with_tensor({.tensor = 2, .pipeline = 2, .expert_tensor = 2, .mirrored = true});
  EXPECT_EQ(with_tensor.groups(GroupKind::kData), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(with_tensor.groups(GroupKind::kTensorData), (Groups{{0, 1, 2, 3}}));
}

// Megatron's rule for the order tp-cp-ep-dp-pp, written out: sizes from the fastest dimension to the slowest, and of
// which of them the group is. Group g's rank i has the digits of i in those dimensions and the digits of g in the
// others.
Groups orthogonal_groups(const std::vector<int>& sizes, const std::vector<bool>& mask) {
  int groups = 1, members = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    (mask[d] ? members : groups) *= sizes[d];
  }
  Groups result(static_cast<std::size_t>(groups));
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < members; ++i) {
      int rank = 0, stride = 1, in_group = i, of_group = g;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        int& digits = mask[d] ? in_group : of_group;
        rank += digits % sizes[d] * stride;
        digits /= sizes[d];
        stride *= sizes[d];
      }
      result[static_cast<std::size_t>(g)].push_back(rank);
    }
  }
  return result;
}

TEST(RankLayout, FollowsMegatronsRuleForAllSmallSizes) {
  for (int tensor : {1, 2, 3}) {
    for (int data : {1, 2, 4, 6}) {
      for (int pipeline : {1, 2, 4}) {
        for (int expert : {1, 2, 4}) {
          for (int expert_tensor : {1, tensor}) {
            if (tensor * data % (expert * expert_tensor) != 0) {
              continue;
            }
            SCOPED_TRACE(testing::Message() << tensor << data << pipeline << expert << expert_tensor);
            const RankLayout layout({tensor, data, pipeline, expert, expert_tensor, false});
            const int expert_data = tensor * data / (expert * expert_tensor);
            const std::vector<int> dense{tensor, data, pipeline};
            const std::vector<int> experts{expert_tensor, expert, expert_data, pipeline};
            EXPECT_EQ(layout.groups(GroupKind::kTensor), orthogonal_groups(dense, {true, false, false}));
            EXPECT_EQ(layout.groups(GroupKind::kData), orthogonal_groups(dense, {false, true, false}));
            EXPECT_EQ(layout.groups(GroupKind::kPipeline), orthogonal_groups(dense, {false, false, true}));
            EXPECT_EQ(layout.groups(GroupKind::kTensorData), orthogonal_groups(dense, {true, true, false}));
            EXPECT_EQ(layout.groups(GroupKind::kExpertTensor), orthogonal_groups(experts, {true, false, false, false}));
            EXPECT_EQ(layout.groups(GroupKind::kExpert), orthogonal_groups(experts, {false, true, false, false}));
            EXPECT_EQ(layout.groups(GroupKind::kExpertData), orthogonal_groups(experts, {false, false, true, false}));
          }
        }
      }
    }
  }
}

TEST(RankLayout, CoordinatesAreThePlacesInTheGroups) {
  const RankLayout layout({.tensor = 2, .data = 4, .pipeline = 2, .expert = 4, .expert_tensor = 1});
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    EXPECT_EQ(layout.group_of(GroupKind::kTensor, rank)[static_cast<std::size_t>(layout.tensor_rank(rank))], rank);
    EXPECT_EQ(layout.group_of(GroupKind::kData, rank)[static_cast<std::size_t>(layout.data_rank(rank))], rank);
    EXPECT_EQ(layout.group_of(GroupKind::kPipeline, rank)[static_cast<std::size_t>(layout.pipeline_rank(rank))], rank);
    EXPECT_EQ(layout.group_of(GroupKind::kExpert, rank)[static_cast<std::size_t>(layout.expert_rank(rank))], rank);
    EXPECT_EQ(layout.group_of(GroupKind::kExpertData, rank)[static_cast<std::size_t>(layout.expert_data_rank(rank))],
              rank);
  }
}

TEST(RankLayout, RefusesExpertsThatDoNotFitAStage) {
  try {
    RankLayout({.tensor = 2, .data = 1, .pipeline = 2, .expert = 4});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "[rank layout] expert_tensor x expert must divide tensor x data = 2 x 1 = 2, got 1 x 4 = 4; for example "
        "an expert size of 1");
  }
}

TEST(RankLayout, PrintsATable) {
  EXPECT_EQ(print_groups(RankLayout({.tensor = 2, .data = 1, .pipeline = 2, .expert = 2, .mirrored = true})),
            "tensor          [0 1] [2 3]\n"
            "pipeline        [0 2] [1 3]\n"
            "data            [0 2] [1 3]\n"
            "expert          [0 1] [2 3]\n"
            "expert_tensor   [0] [1] [2] [3]\n"
            "expert_data     [0 2] [1 3]\n"
            "tensor_data     [0 1 2 3]\n"
            "embedding_data  [0 2] [1 3]\n");
}

}  // namespace
}  // namespace pretrain_gpt
