// The exchange of rows between the ranks of a group.
#include "examples/pretrain_gpt/parallel/all_to_all.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "tests/pretrain_gpt/moe_reference.h"

namespace pretrain_gpt {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;  // [from][to]

RowSplits splits_of(const Counts& counts, int rank) {
  RowSplits splits{counts[static_cast<std::size_t>(rank)], {}};
  for (const auto& row : counts) {
    splits.receive.push_back(row[static_cast<std::size_t>(rank)]);
  }
  return splits;
}

// Row i from rank a to rank b, of the given width.
at::Tensor row_value(int from, int to, std::int64_t i, std::int64_t width) {
  return at::arange(width, at::kDouble) + static_cast<double>(100 * from + 20 * to) + static_cast<double>(i);
}

at::Tensor rows_between(const Counts& counts, const std::vector<int>& from, const std::vector<int>& to,
                        std::int64_t width) {
  std::vector<at::Tensor> rows{at::empty({0, width}, at::kDouble)};
  for (const int a : from) {
    for (const int b : to) {
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]; ++i) {
        rows.push_back(row_value(a, b, i, width).unsqueeze(0));
      }
    }
  }
  return at::cat(rows);
}

struct MoveCase {
  std::string name;
  Counts counts;
};

const std::vector<MoveCase> kMoveCases = {
    {"Even", {{1, 1}, {1, 1}}},
    {"Uneven", {{1, 4}, {2, 3}}},
    {"OneSendsNothing", {{0, 0}, {2, 5}}},
    {"OneReceivesNothing", {{0, 3}, {0, 2}}},
    {"NothingCrosses", {{3, 0}, {0, 2}}},
    {"NothingAtAll", {{0, 0}, {0, 0}}},
    {"ThreeRanks", {{0, 2, 1}, {0, 0, 0}, {5, 0, 1}}},
};

class AllToAll : public testing::TestWithParam<MoveCase> {};

TEST_P(AllToAll, MovesEveryRow) {
  const Counts& counts = GetParam().counts;
  const int ranks = static_cast<int>(counts.size());
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(rank);
  }
  run_test_ranks(ranks, [&](const TestRank& rank) {
    const LayerGroup group = rank.group_by("all", [](int) { return 0; });
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor sent = rows_between(counts, {rank.rank}, all, 3).to(dtype);
      const Tensors received = start_all_to_all(sent, splits_of(counts, rank.rank), group, "test")->wait();
      ASSERT_EQ(received.size(), 1u);
      EXPECT_EQ(received[0].scalar_type(), dtype);
      EXPECT_TRUE(at::equal(received[0], rows_between(counts, all, {rank.rank}, 3).to(dtype))) << dtype;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Splits, AllToAll, testing::ValuesIn(kMoveCases),
                         [](const auto& info) { return info.param.name; });

TEST(AllToAllPosting, NeverWaits) {
  std::atomic<bool> is_posted = false;
  run_test_ranks(2, [&](const TestRank& rank) {
    const LayerGroup group = rank.group_by("all", [](int) { return 0; });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (rank.rank == 1 && !is_posted && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(is_posted, rank.rank == 1);
    const auto pending = start_all_to_all(at::full(2, rank.rank), {{1, 1}, {1, 1}}, group, "test");
    is_posted = true;
    EXPECT_TRUE(at::equal(pending->wait()[0], at::arange(2)));
  });
}

TEST(AllToAllPosting, TakesRowsOfAnyLayoutAndKeepsThemAlive) {
  run_test_ranks(2, [&](const TestRank& rank) {
    const LayerGroup group = rank.group_by("all", [](int) { return 0; });
    std::vector<std::unique_ptr<PendingTensors>> pending;
    for (int i = 0; i < 4; ++i) {
      const at::Tensor rows = at::arange(6, at::kDouble).add(10 * i).view({3, 2}).t();  // Transposed, and dropped here.
      pending.push_back(start_all_to_all(rows, {{1, 1}, {1, 1}}, group, "test"));
    }
    for (int i = 0; i < 4; ++i) {
      const at::Tensor row = at::tensor({0.0, 2.0, 4.0}).to(at::kDouble) + 10 * i + rank.rank;
      EXPECT_TRUE(at::equal(pending[static_cast<std::size_t>(i)]->wait()[0], at::stack({row, row})));
    }
  });
}

TEST(AllToAllPosting, AGroupOfOneMovesNothing) {
  const at::Tensor rows = at::ones({2, 3}).requires_grad_();
  const at::Tensor result = start_all_to_all(rows, {{2}, {2}}, {}, "test")->wait()[0];
  EXPECT_TRUE(result.is_alias_of(rows));
  EXPECT_TRUE(result.requires_grad());
  EXPECT_TRUE(result.is_leaf());
}

struct RefusalCase {
  std::string name;
  RowSplits splits;
  std::string message;
};

const std::vector<RefusalCase> kRefusals = {
    {"DoNotAddUp",
     {{3, 3}, {3, 2}},
     "[layers.3.mlp] the rows that an all-to-all sends must add up to the rows given = 5, got 3 + 3 = 6; for example "
     "3, "
     "2"},
    {"TooFewCounts",
     {{5}, {3, 2}},
     "[layers.3.mlp] an all-to-all must have one count of rows to send of at least 0 for each of the 2 ranks, got 5; "
     "for example 3, 2"},
    {"NegativeCount",
     {{3, 2}, {3, -2}},
     "[layers.3.mlp] an all-to-all must have one count of rows to receive of at least 0 for each of the 2 ranks, got "
     "3, "
     "-2; for example 3, 2"},
};

TEST(AllToAllRefusals, NameWhatIsWrongBeforeAnythingIsSent) {
  run_test_ranks(2, [&](const TestRank& rank) {
    const LayerGroup group = rank.group_by("all", [](int) { return 0; });
    const at::Tensor rows = at::ones({5, 2});
    for (const RefusalCase& refusal : kRefusals) {
      try {
        start_all_to_all(rows, refusal.splits, group, "layers.3.mlp");
        ADD_FAILURE() << refusal.name << " was taken";
      } catch (const UserError& error) {
        EXPECT_EQ(error.what(), refusal.message) << refusal.name;
      }
    }
    // The group is as good as before.
    const at::Tensor mine = at::full({2, 1}, rank.rank);
    EXPECT_TRUE(at::equal(start_all_to_all(mine, {{1, 1}, {1, 1}}, group, "test")->wait()[0].flatten(), at::arange(2)));
  });
}

TEST(AllToAllRefusals, ARanksOwnRowsMustMatch) {
  run_test_ranks(2, [&](const TestRank& rank) {
    const LayerGroup group = rank.group_by("all", [](int) { return 0; });
    try {
      start_all_to_all(at::ones({4, 2}), {{2, 2}, {1, 1}}, group, "layers.3.mlp");
      ADD_FAILURE() << "was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), "[layers.3.mlp] rank " + std::to_string(rank.rank) +
                                  " must receive as many rows from itself as it sends to itself = 2, got 1; for "
                                  "example 2");
    }
  });
}

}  // namespace
}  // namespace pretrain_gpt
