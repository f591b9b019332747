// examples/pretrain_gpt/checkpoint/box.h
//
// A rectangular piece of a tensor, and how pieces lie in each other. No LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pretrain_gpt {

using Shape = std::vector<std::int64_t>;

// Elements; nothing where one is negative or the product does not fit.
std::optional<std::int64_t> count_elements(const Shape& shape);

// Elements [start, start + size) in every dimension. Of a scalar: no dimensions, and one element.
struct Box {
  Shape start, size;

  bool operator==(const Box&) const = default;
};

Box whole_box(const Shape& shape);

// "[0:16,8:24]"; of a scalar "[]".
std::string print_box(const Box& box);

// Nothing where they have no element in common. Of boxes of one tensor.
std::optional<Box> overlap(const Box& a, const Box& b);

// Whether the box has as many dimensions as the shape, is not empty, and ends inside of it. Any numbers are legal.
bool is_inside(const Box& box, const Shape& shape);

// Whether every element of the shape is in exactly one of the boxes, all of which are inside of it.
bool tile(const Shape& shape, std::vector<Box> boxes);

// Elements [from, from + count) of a tensor laid out as a row, as boxes: parts of rows at both ends, whole rows
// between. `at` is where a box's elements begin, counted from `from`.
struct Run {
  Box box;
  std::int64_t at = 0;
};
std::vector<Run> runs_of(const Shape& shape, std::int64_t from, std::int64_t count);

// How a rank's part of a tensor lies in the whole: along `dimension`, which holds `blocks` matrices of equal size, the
// rank has part `index` of `count` of each.
struct Division {
  std::int64_t dimension = 0, blocks = 1, index = 0, count = 1;
};
Shape whole_shape(Shape part, const Division& division);

// Cuts `box` of the part where the blocks end. Calls visit(offset, size, place): [offset, offset + size) of the box
// along the dimension lies at `place` in the whole.
void visit_blocks(const Box& box, const Shape& part, const Division& division,
                  const std::function<void(std::int64_t offset, std::int64_t size, const Box& place)>& visit);

}  // namespace pretrain_gpt
