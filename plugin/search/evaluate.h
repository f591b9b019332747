// plugin/search/evaluate.h
//
// The time of an order, as analysis/simulate.h defines it and to the bit, some hundred times faster: what the search
// asks millions of times.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plugin/search/lanes.h"

namespace dualpipe::search {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Score {
  double makespan = kNever;  // kNever: the ranks wait for each other, or it is above the limit.
  double ends = kNever;      // Sum over ranks of the end of the last action: orders with slack win at equal makespan.
};

// What one rank's word can break by itself.
struct WordCheck {
  bool holds = false;  // B and I behind their F, W behind its I, never more alive than allowed.
  double busy = 0;     // Sum of durations.
};

// Keeps a reference to the lanes. Not thread-safe.
class Evaluator {
 public:
  explicit Evaluator(const Lanes& lanes);

  WordCheck check_word(int rank, const Word& word);
  // `words` passed check_word(), which gave `busy`. Gives up as soon as the makespan is sure to be above `limit`.
  Score evaluate(const Words& words, const std::vector<double>& busy, double limit = kNever);
  std::int64_t evaluations() const { return evaluations_; }

 private:
  bool run_rank(int rank, const Word& word, double latest_start);
  bool wait_for(int rank, int event);
  void wake(int lane, int event);

  struct Progress {
    std::size_t column = 0;
    double free = 0;
    double remaining = 0;
    int waits_for = -1;
  };

  const Lanes& lanes_;
  std::vector<int> forwards_;  // Done, by lane.
  std::vector<int> backwards_;
  std::vector<int> weights_;
  std::vector<double> forward_end_;  // By lane and turn.
  std::vector<double> backward_end_;
  std::vector<Progress> progress_;
  std::vector<int> queue_;
  std::int64_t evaluations_ = 0;
};

// The stage whose B or W is the last of a word; -1 for an empty one.
int last_stage(const Lanes& lanes, const Word& word);

// False where two mirrors end their stages in different orders, and so reduce their gradients in different ones.
bool mirrors_agree(const Lanes& lanes, const Words& words);

}  // namespace dualpipe::search
