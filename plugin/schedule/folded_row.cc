#include "plugin/schedule/folded_row.h"

#include <cstddef>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

// A row under construction. Each lane's forwards and backwards run in the order of its micro-batches, so the next one
// need not be named; put-off weight gradients run in the order in which they were put off.
class RowWriter {
 public:
  explicit RowWriter(const std::array<Lane, 2>& lanes) : lanes_(lanes) {}

  void reserve(std::size_t actions) { row_.reserve(actions); }
  void forward(int lane) { row_.push_back(single(next_forward(lane))); }
  void backward(int lane) { row_.push_back(single(next_backward(lane, Kind::kBackward))); }
  void overlapped(int forward_lane, int backward_lane) {
    const Op forward = next_forward(forward_lane);
    row_.push_back(overlap(forward, next_backward(backward_lane, Kind::kBackward)));
  }
  void input_gradient(int lane) {
    const Op input = next_backward(lane, Kind::kBackwardInput);
    row_.push_back(single(input));
    put_off_.push_back(make_op(input.stage, Kind::kBackwardWeight, input.micro_batch));
  }
  void weight_gradient() {
    check(weights_done_ < put_off_.size(), "a weight gradient was put off before it is run");
    row_.push_back(single(put_off_[weights_done_++]));
  }
  Row take() { return std::move(row_); }

 private:
  Op next_forward(int lane) { return next(lane, Kind::kForward, forwards_[lane]); }
  Op next_backward(int lane, Kind kind) { return next(lane, kind, backwards_[lane]); }
  Op next(int lane, Kind kind, int& count) {
    return make_op(lanes_[lane].stage, kind, lanes_[lane].first_micro_batch + count++);
  }

  const std::array<Lane, 2>& lanes_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::vector<Op> put_off_;
  std::size_t weights_done_ = 0;
  Row row_;
};

void write_nF0(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.forward(0);
  }
}

void write_nF0F1(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.forward(0);
    row.forward(1);
  }
}

void write_nB1W1F1(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.input_gradient(1);
    row.weight_gradient();
    row.forward(1);
  }
}

// The rank in the middle, or at the turn, starts this phase alone: nothing has come back yet that it could overlap
// without waiting, so its first F0 and B1 run one after the other.
void write_nF0B1F1B0(RowWriter& row, int n, bool innermost) {
  for (int i = 0; i < n; ++i) {
    if (i == 0 && innermost) {
      row.forward(0);
      row.backward(1);
    } else {
      row.overlapped(0, 1);
    }
    row.overlapped(1, 0);
  }
}

void write_nB1F1B0(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.backward(1);
    row.overlapped(1, 0);
  }
}

// 2n backwards: the first n whole, the others split, since from there on the next rank waits for the input gradient
// while this one has slots to spare for weights.
void write_nB1B0(RowWriter& row, int n) {
  for (int i = 0; i < 2 * n; ++i) {
    const int lane = i % 2 == 0 ? 1 : 0;
    if (i < n) {
      row.backward(lane);
    } else {
      row.input_gradient(lane);
    }
  }
}

void write_nWB0(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.weight_gradient();
    row.input_gradient(0);
  }
}

void write_nW(RowWriter& row, int n) {
  for (int i = 0; i < n; ++i) {
    row.weight_gradient();
  }
}

}  // namespace

Row folded_row(const FoldedShape& shape, const std::array<Lane, 2>& lanes) {
  const auto [depth, half, per_lane] = shape;
  check(0 <= depth && depth < half && per_lane >= 2 * half, "a folded row has at least two micro-batches per rank");
  const int behind = half - 1 - depth;  // Ranks between this one and the middle or the turn.
  const int before = depth + 1;         // Ranks from the near end up to and including this one.
  RowWriter row(lanes);
  row.reserve(2 * static_cast<std::size_t>(per_lane) + 9 * static_cast<std::size_t>(half));
  write_nF0(row, 2 * behind);
  write_nF0F1(row, before);
  write_nB1W1F1(row, behind);
  write_nF0B1F1B0(row, per_lane - 2 * half + before, behind == 0);
  write_nB1F1B0(row, behind);
  write_nB1B0(row, before);
  write_nWB0(row, behind);
  write_nW(row, before);
  return row.take();
}

}  // namespace dualpipe
