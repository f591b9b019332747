// plugin/analysis/stage_table.h
//
// A dense table over (stage, micro-batch). Neighbouring micro-batches of one stage are neighbours in memory, so a rank
// that walks its row stays within a few cache lines. Rows are a cache line longer than they need be: with a power of two
// of micro-batches the same column of all stages would else compete for one place in the cache, which halves the speed.
#pragma once

#include <cstddef>
#include <vector>

#include "plugin/schedule/action.h"

namespace dualpipe::analysis {

constexpr std::size_t padded_stride(int num_microbatches, std::size_t value_size) {
  constexpr std::size_t kCacheLine = 64;
  return static_cast<std::size_t>(num_microbatches) + (kCacheLine + value_size - 1) / value_size;
}

template <class T>
class StageTable {
 public:
  StageTable(int stages, int num_microbatches, T initial = T{})
      : stages_(stages),
        num_microbatches_(num_microbatches),
        stride_(padded_stride(num_microbatches, sizeof(T))),
        values_(static_cast<std::size_t>(stages) * stride_, initial) {}

  bool contains(const Op& op) const {
    return op.stage < stages_ && op.micro_batch >= 0 && op.micro_batch < num_microbatches_;
  }
  T& at(int stage, int micro_batch) { return values_[index(stage, micro_batch)]; }
  const T& at(int stage, int micro_batch) const { return values_[index(stage, micro_batch)]; }

 private:
  std::size_t index(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * stride_ + static_cast<std::size_t>(micro_batch);
  }

  int stages_;
  int num_microbatches_;
  std::size_t stride_;
  std::vector<T> values_;
};

}  // namespace dualpipe::analysis
