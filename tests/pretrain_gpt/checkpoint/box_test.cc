#include "examples/pretrain_gpt/checkpoint/box.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace pretrain_gpt {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// Elements of a box by their place in the row that the tensor makes: the slow way.
std::vector<std::int64_t> elements(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> places{0};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places) {
      for (std::int64_t k = 0; k < box.size[i]; ++k) {
        next.push_back(place * shape[i] + box.start[i] + k);
      }
    }
    places = next;
  }
  return places;
}

TEST(Box, CountsWithoutOverflow) {
  EXPECT_EQ(count_elements({}), 1);
  EXPECT_EQ(count_elements({3, 4}), 12);
  EXPECT_EQ(count_elements({3, 0}), 0);
  EXPECT_EQ(count_elements({3, -1}), std::nullopt);
  EXPECT_EQ(count_elements({kMost, 2}), std::nullopt);
  EXPECT_EQ(print_box({{0, 8}, {16, 8}}), "[0:16,8:16]");
  EXPECT_EQ(print_box({}), "[]");
}

TEST(Box, IsInsideWhateverTheNumbers) {
  const struct {
    Box box;
    Shape shape;
    bool inside;
  } rows[] = {{{{0, 0}, {2, 3}}, {2, 3}, true},
              {{{1, 2}, {1, 1}}, {2, 3}, true},
              {{{1, 2}, {1, 2}}, {2, 3}, false},
              {{{0}, {2}}, {2, 3}, false},
              {{{0, 0}, {2}}, {2, 3}, false},
              {{{-1, 0}, {1, 1}}, {2, 3}, false},
              {{{0, 0}, {0, 3}}, {2, 3}, false},
              {{{0, 3}, {1, 1}}, {2, 3}, false},
              {{{1}, {kMost}}, {kMost}, false},
              {{{kMost}, {kMost}}, {4}, false},
              {{}, {}, true}};
  for (const auto& row : rows) {
    EXPECT_EQ(is_inside(row.box, row.shape), row.inside) << print_box({row.box.start, row.box.start});
  }
}

TEST(Box, OverlapsWhereBothAre) {
  EXPECT_EQ(overlap({{0, 0}, {2, 3}}, {{1, 2}, {4, 4}}), (Box{{1, 2}, {1, 1}}));
  EXPECT_EQ(overlap({{0, 0}, {2, 3}}, {{2, 0}, {1, 1}}), std::nullopt);
  EXPECT_EQ(overlap({}, {}), Box{});
}

TEST(Tile, TakesEveryElementOnce) {
  const Shape shape{4, 4};
  const Box left{{0, 0}, {4, 2}}, right{{0, 2}, {4, 2}}, top{{0, 2}, {2, 2}}, bottom{{2, 2}, {2, 2}};
  EXPECT_TRUE(tile(shape, {left, right}));
  EXPECT_TRUE(tile(shape, {bottom, left, top}));
  EXPECT_FALSE(tile(shape, {left, top}));
  EXPECT_FALSE(tile(shape, {left, left}));
  EXPECT_FALSE(tile(shape, {left, {{0, 1}, {4, 2}}}));
  EXPECT_FALSE(tile(shape, {}));
  EXPECT_TRUE(tile({}, {Box{}}));
  EXPECT_FALSE(tile({}, {Box{}, Box{}}));
  EXPECT_FALSE(tile({kMost, kMost}, {{{0, 0}, {1, 1}}}));
}

// Any division of a tensor into boxes, beside the count of elements one by one.
TEST(Tile, AgreesWithCountingElements) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  int tiled = 0;
  for (int round = 0; round < 4000; ++round) {
    const Shape shape{1 + below(3), 1 + below(3)};
    std::vector<Box> boxes;
    std::map<std::int64_t, int> covered;
    for (std::int64_t i = 1 + below(3); i > 0; --i) {
      Box box{{below(shape[0]), below(shape[1])}, {}};
      box.size = {1 + below(shape[0] - box.start[0]), 1 + below(shape[1] - box.start[1])};
      for (const std::int64_t place : elements(box, shape)) {
        ++covered[place];
      }
      boxes.push_back(box);
    }
    bool wanted = covered.size() == static_cast<std::size_t>(*count_elements(shape));
    for (const auto& [place, count] : covered) {
      wanted = wanted && count == 1;
    }
    ASSERT_EQ(tile(shape, boxes), wanted) << round;
    tiled += wanted ? 1 : 0;
  }
  EXPECT_GT(tiled, 100);
}

// In order and back to back, for every range of a few shapes.
TEST(Runs, AreTheRangeInOrder) {
  for (const Shape& shape : std::vector<Shape>{{7}, {3, 4}, {2, 3, 4}, {5, 1}, {1, 5}}) {
    const std::int64_t count = *count_elements(shape);
    for (std::int64_t from = 0; from < count; ++from) {
      for (std::int64_t size = 0; size <= count - from; ++size) {
        std::vector<std::int64_t> wanted, got;
        for (std::int64_t i = 0; i < size; ++i) {
          wanted.push_back(from + i);
        }
        for (const auto& run : runs_of(shape, from, size)) {
          ASSERT_EQ(run.at, static_cast<std::int64_t>(got.size()));
          ASSERT_TRUE(is_inside(run.box, shape));
          const auto more = elements(run.box, shape);
          got.insert(got.end(), more.begin(), more.end());
        }
        ASSERT_EQ(got, wanted);
      }
    }
  }
  EXPECT_EQ(runs_of({3, 4}, 2, 9).size(), 3);  // Two of the first row, one whole, three of the last.
  EXPECT_EQ(runs_of({}, 0, 1).size(), 1);
}

struct Visited {
  std::int64_t offset, size;
  Box place;
  bool operator==(const Visited&) const = default;
};

std::vector<Visited> visited(const Box& box, const Shape& part, const Division& division) {
  std::vector<Visited> all;
  visit_blocks(box, part, division, [&](std::int64_t offset, std::int64_t size, const Box& place) {
    all.push_back({offset, size, place});
  });
  return all;
}

// Rows 0 and 1 of queries, 2 and 3 of keys, 4 and 5 of values: part 1 of 2 of a whole of 12 rows.
TEST(Blocks, LieApartInTheWhole) {
  const Division division{0, 3, 1, 2};
  EXPECT_EQ(whole_shape({6, 5}, division), (Shape{12, 5}));
  EXPECT_EQ(visited({{0, 0}, {6, 5}}, {6, 5}, division),
            (std::vector<Visited>{{0, 2, {{2, 0}, {2, 5}}}, {2, 2, {{6, 0}, {2, 5}}}, {4, 2, {{10, 0}, {2, 5}}}}));
  EXPECT_EQ(visited({{1, 2}, {2, 3}}, {6, 5}, division),
            (std::vector<Visited>{{0, 1, {{3, 2}, {1, 3}}}, {1, 1, {{6, 2}, {1, 3}}}}));
  EXPECT_EQ(visited({{1, 2}, {2, 3}}, {6, 5}, {1, 1, 2, 4}), (std::vector<Visited>{{0, 3, {{1, 12}, {2, 3}}}}));
  EXPECT_EQ(visited({{1, 2}, {2, 3}}, {6, 5}, {}), (std::vector<Visited>{{0, 2, {{1, 2}, {2, 3}}}}));
}

}  // namespace
}  // namespace pretrain_gpt
