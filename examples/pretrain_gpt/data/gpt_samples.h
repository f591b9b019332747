// examples/pretrain_gpt/data/gpt_samples.h
//
// A range of an indexed data set as samples of seq_length + 1 tokens, in an order shuffled anew for each pass.
//
// The stream of tokens is cut every seq_length tokens; a sample has one token more, which only serves as a label.
// Sample n is position n modulo size() of pass n / size(). The order of a pass depends on the seed and the pass alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "examples/pretrain_gpt/data/indexed_dataset.h"

namespace pretrain_gpt {

class GptSamples {
 public:
  // Samples [first, first + count) of the cut stream; count at least 1.
  GptSamples(std::shared_ptr<const IndexedDataset> dataset, std::int64_t seq_length, std::int64_t first,
             std::int64_t count, std::uint64_t seed);

  std::int64_t size() const { return count_; }

  // The seq_length + 1 tokens of sample n >= 0. Not thread-safe: keeps the order of the latest pass.
  void read(std::int64_t n, std::span<std::int64_t> into);

  // How many samples a data set has in all.
  static std::int64_t samples_of(const IndexedDataset& dataset, std::int64_t seq_length);

 private:
  std::int64_t shuffled(std::int64_t n);

  std::shared_ptr<const IndexedDataset> dataset_;
  std::int64_t seq_length_, first_, count_;
  std::uint64_t seed_;
  std::int64_t pass_ = -1;  // Of order_; -1 before the first read.
  std::vector<std::int64_t> order_;
};

}  // namespace pretrain_gpt
