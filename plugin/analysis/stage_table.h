// plugin/analysis/stage_table.h
//
// A dense table over (stage, micro-batch). Neighbouring micro-batches of one stage are neighbours in memory, so a rank
// that walks its row stays within a few cache lines.
#pragma once

#include <cstddef>
#include <vector>

#include "plugin/schedule/action.h"

namespace dualpipe::analysis {

template <class T>
class StageTable {
 public:
  StageTable(int stages, int num_microbatches, T initial = T{})
      : stages_(stages),
        num_microbatches_(num_microbatches),
        stride_(static_cast<std::size_t>(num_microbatches)),
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
