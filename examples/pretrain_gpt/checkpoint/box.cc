#include "examples/pretrain_gpt/checkpoint/box.h"

#include <fmt/format.h>

#include <algorithm>

namespace pretrain_gpt {
namespace {

// The rest of `shape` behind the first dimension, in row `row` of it.
void add_runs_of_row(std::vector<Run>& runs, const Shape& shape, std::int64_t row, std::int64_t from,
                     std::int64_t count, std::int64_t at) {
  for (Run& run : runs_of({shape.begin() + 1, shape.end()}, from, count)) {
    run.box.start.insert(run.box.start.begin(), row);
    run.box.size.insert(run.box.size.begin(), 1);
    run.at += at;
    runs.push_back(std::move(run));
  }
}

std::int64_t first(const Shape& shape) { return shape.empty() ? 0 : shape.front(); }

}  // namespace

std::optional<std::int64_t> count_elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      return std::nullopt;
    }
  }
  return count;
}

Box whole_box(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::string print_box(const Box& box) {
  std::string text;
  for (std::size_t i = 0; i < box.start.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", box.start[i], box.start[i] + box.size[i]);
  }
  return fmt::format("[{}]", text);
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box both;
  for (std::size_t i = 0; i < a.start.size(); ++i) {
    const std::int64_t begin = std::max(a.start[i], b.start[i]);
    const std::int64_t end = std::min(a.start[i] + a.size[i], b.start[i] + b.size[i]);
    if (begin >= end) {
      return std::nullopt;
    }
    both.start.push_back(begin);
    both.size.push_back(end - begin);
  }
  return both;
}

bool is_inside(const Box& box, const Shape& shape) {
  if (box.start.size() != shape.size() || box.size.size() != shape.size()) {
    return false;
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.start[i] < 0 || box.size[i] < 1 || box.start[i] >= shape[i] || box.size[i] > shape[i] - box.start[i]) {
      return false;
    }
  }
  return true;
}

// Boxes that begin in one row meet only those that reach it.
bool tile(const Shape& shape, std::vector<Box> boxes) {
  const std::optional<std::int64_t> wanted = count_elements(shape);
  std::int64_t count = 0;
  for (const Box& box : boxes) {
    if (!wanted || !is_inside(box, shape) || __builtin_add_overflow(count, *count_elements(box.size), &count)) {
      return false;
    }
  }
  if (!wanted || count != *wanted) {
    return false;
  }
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.start < b.start; });
  std::vector<const Box*> open;
  for (const Box& box : boxes) {
    std::erase_if(open, [&](const Box* other) {
      return !shape.empty() && first(other->start) + first(other->size) <= first(box.start);
    });
    if (std::any_of(open.begin(), open.end(), [&](const Box* other) { return overlap(*other, box).has_value(); })) {
      return false;
    }
    open.push_back(&box);
  }
  return true;
}

std::vector<Run> runs_of(const Shape& shape, std::int64_t from, std::int64_t count) {
  std::vector<Run> runs;
  if (count == 0) {
    return runs;
  }
  if (shape.size() <= 1) {
    runs.push_back(shape.empty() ? Run{} : Run{{{from}, {count}}, 0});
    return runs;
  }
  const std::int64_t row = *count_elements({shape.begin() + 1, shape.end()});
  const std::int64_t head = from % row == 0 ? 0 : std::min(count, row - from % row);
  if (head > 0) {
    add_runs_of_row(runs, shape, from / row, from % row, head, 0);
  }
  const std::int64_t rows = (count - head) / row, tail = (count - head) % row, begin = (from + head) / row;
  if (rows > 0) {
    Box box = whole_box(shape);
    box.start.front() = begin;
    box.size.front() = rows;
    runs.push_back({std::move(box), head});
  }
  if (tail > 0) {
    add_runs_of_row(runs, shape, begin + rows, 0, tail, head + rows * row);
  }
  return runs;
}

Shape whole_shape(Shape part, const Division& division) {
  if (division.count > 1) {
    part.at(static_cast<std::size_t>(division.dimension)) *= division.count;
  }
  return part;
}

void visit_blocks(const Box& box, const Shape& part, const Division& division,
                  const std::function<void(std::int64_t offset, std::int64_t size, const Box& place)>& visit) {
  if (division.count == 1) {
    visit(0, box.size.empty() ? 1 : box.size.at(static_cast<std::size_t>(division.dimension)), box);
    return;
  }
  const auto d = static_cast<std::size_t>(division.dimension);
  const std::int64_t block = part.at(d) / division.blocks, end = box.start[d] + box.size[d];
  for (std::int64_t begin = box.start[d]; begin < end;) {
    const std::int64_t next = std::min(end, (begin / block + 1) * block);
    Box place = box;
    place.start[d] = (begin / block * division.count + division.index) * block + begin % block;
    place.size[d] = next - begin;
    visit(begin - box.start[d], next - begin, place);
    begin = next;
  }
}

}  // namespace pretrain_gpt
