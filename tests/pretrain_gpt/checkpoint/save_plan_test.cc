#include "examples/pretrain_gpt/checkpoint/save_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/pretrain_gpt/checkpoint/refusal.h"

namespace pretrain_gpt {
namespace {

using ByRank = std::vector<std::vector<HeldBox>>;

HeldBox held(const std::string& name, const Shape& shape, const Box& box, const std::string& part, int set) {
  return {name, "F32", shape, box, part, set};
}

HeldBox whole(const std::string& name, std::int64_t size, int rank) {
  return held(name, {size}, whole_box({size}), "", rank);
}

std::int64_t written(const ByRank& by_rank, const std::vector<std::size_t>& indices, std::size_t rank) {
  std::int64_t elements = 0;
  for (const std::size_t index : indices) {
    elements += *count_elements(by_rank[rank][index].box.size);
  }
  return elements;
}

TEST(SavePlan, DividesCopiesEvenly) {
  ByRank by_rank(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (const std::int64_t size : {80, 70, 50, 40, 30, 20, 10}) {
      by_rank[static_cast<std::size_t>(rank)].push_back(whole("w" + std::to_string(size), size, rank));
    }
  }
  const auto plan = divide_writing(by_rank);
  std::size_t pieces = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(written(by_rank, plan[rank], rank)), 75, 5);
    pieces += plan[rank].size();
  }
  EXPECT_EQ(pieces, 7);
}

// Ranks 0 and 1 hold a copy together, in slices, and ranks 2 and 3 another, cut elsewhere: slices of the two do not
// mix.
TEST(SavePlan, TakesOneCopyWhole) {
  const auto slice = [](std::int64_t begin, std::int64_t size, int set) {
    return held("w", {10}, {{begin}, {size}}, "", set);
  };
  const ByRank by_rank{{slice(0, 6, 0), whole("v", 100, 0)}, {slice(6, 4, 0)}, {slice(0, 3, 2)}, {slice(3, 7, 2)}};
  const auto plan = divide_writing(by_rank);
  EXPECT_EQ(plan, (std::vector<std::vector<std::size_t>>{{1}, {}, {0}, {0}}));
  const auto tensors = planned_tensors(by_rank, plan);
  ASSERT_EQ(tensors.at("w").pieces.size(), 2);
  EXPECT_EQ(tensors.at("w").pieces[0].file, 1);  // Files are those of ranks 0, 2 and 3.
  EXPECT_EQ(tensors.at("w").pieces[1].file, 2);
  EXPECT_EQ(tensors.at("w").pieces[1].box, (Box{{3}, {7}}));
}

TEST(SavePlan, RefusesATensorThatIsNotAllThere) {
  EXPECT_EQ(refusal([] {
              divide_writing({{held("w", {10}, {{0}, {6}}, "tp0", 0)}});
            }),
            "[checkpoint] the ranks must hold every element of w, got 1 pieces that do not make it up");
}

TEST(SavePlan, PrintsAndParses) {
  const std::vector<HeldBox> list{held("a\"b", {2, 3}, {{0, 1}, {2, 2}}, "tp1", 3), held("s", {}, {}, "", 0)};
  const std::vector<HeldBox> again = parse_held(print_held(list));
  ASSERT_EQ(again.size(), 2);
  EXPECT_EQ(print_held(again), print_held(list));
  EXPECT_EQ(again[0].box, list[0].box);
  EXPECT_EQ(again[0].set, 3);
  EXPECT_EQ(parse_indices(print_indices({3, 1})), (std::vector<std::size_t>{3, 1}));
  EXPECT_EQ(rank_file_name(12), "rank_00012.safetensors");
}

}  // namespace
}  // namespace pretrain_gpt
