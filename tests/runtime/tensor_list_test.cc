#include "plugin/runtime/tensor_list.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

std::vector<std::int64_t> rows_of(const MicroBatches& parts, std::size_t tensor) {
  std::vector<std::int64_t> rows;
  for (const TensorList& part : parts) rows.push_back(part.at(tensor).size(0));
  return rows;
}

TEST(SplitRows, GivesTheFirstPartsOneRowMore) {
  EXPECT_THAT(rows_of(split_rows({at::zeros({10, 2})}, 4), 0), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(rows_of(split_rows({at::zeros({8, 2})}, 4), 0), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(rows_of(split_rows({at::zeros({4})}, 4), 0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(rows_of(split_rows({at::zeros({5})}, 1), 0), ElementsAre(5));
}

TEST(SplitRows, KeepsOrderDtypesAndUndefinedTensors) {
  const at::Tensor ids = at::arange(7, at::kLong), features = at::rand({7, 3});
  const MicroBatches parts = split_rows({ids, {}, features}, 3);
  ASSERT_EQ(parts.size(), 3u);
  TensorList id_parts, feature_parts;
  for (const TensorList& part : parts) {
    ASSERT_EQ(part.size(), 3u);
    EXPECT_FALSE(part[1].defined());
    id_parts.push_back(part[0]);
    feature_parts.push_back(part[2]);
  }
  EXPECT_TRUE(at::equal(at::cat(id_parts), ids));
  EXPECT_EQ(id_parts[0].scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(at::cat(feature_parts), features));
}

TEST(SplitRows, OfNoTensors) {
  const MicroBatches parts = split_rows({}, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(parts[2].empty());
}

TEST(SplitRows, RefusesFewerRowsThanParts) {
  EXPECT_THAT(
      [] {
        split_rows({at::zeros({8}), at::zeros({3, 9})}, 4);
      },
      ThrowsMessage<ScheduleError>("[split_rows] tensor 1 must have at least one row per micro-batch = 4, got 3 rows"));
  EXPECT_THAT(
      [] { split_rows({at::zeros({1})}, 2); },
      ThrowsMessage<ScheduleError>("[split_rows] tensor 0 must have at least one row per micro-batch = 2, got 1 row"));
  EXPECT_THAT(
      [] {
        split_rows({at::zeros({0, 4})}, 2);
      },
      ThrowsMessage<ScheduleError>("[split_rows] tensor 0 must have at least one row per micro-batch = 2, got 0 rows"));
  EXPECT_THAT([] { split_rows({at::zeros({})}, 2); },
              ThrowsMessage<ScheduleError>(
                  "[split_rows] tensor 0 must have at least one row per micro-batch = 2, got a scalar"));
}

TEST(SplitRows, RefusesLessThanOnePart) {
  EXPECT_THAT([] { split_rows({at::zeros({8})}, 0); },
              ThrowsMessage<ScheduleError>("[split_rows] count must be at least 1, got 0"));
  EXPECT_THAT([] { split_rows({}, -2); },
              ThrowsMessage<ScheduleError>("[split_rows] count must be at least 1, got -2"));
}

}  // namespace
}  // namespace dualpipe
