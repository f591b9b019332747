// plugin/analysis/rank_queue.h
//
// The ranks that may be able to go on, in the order of asking.
#pragma once

#include <deque>
#include <optional>
#include <vector>

namespace dualpipe::analysis {

class RankQueue {
 public:
  // Holds every rank at first.
  explicit RankQueue(int ranks) : is_queued_(ranks, 0) {
    for (int rank = 0; rank < ranks; ++rank) {
      push(rank);
    }
  }

  // Nothing happens if the rank is queued already.
  void push(int rank) {
    if (is_queued_[rank] == 0) {
      is_queued_[rank] = 1;
      queue_.push_back(rank);
    }
  }

  std::optional<int> pop() {
    if (queue_.empty()) {
      return std::nullopt;
    }
    const int rank = queue_.front();
    queue_.pop_front();
    is_queued_[rank] = 0;
    return rank;
  }

 private:
  std::vector<char> is_queued_;
  std::deque<int> queue_;
};

}  // namespace dualpipe::analysis
