// plugin/search/anneal.h
//
// One chain of simulated annealing over the words of all ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "plugin/search/evaluate.h"

namespace dualpipe::search {

struct Found {
  Words words;
  Score score;
};

struct ChainOptions {
  std::int64_t evaluations = 0;
  std::uint64_t seed = 0;
  double hot = 0.12;  // Temperatures, in mean durations of a letter.
  double cold = 0.015;
  double bound = 0;                            // The chain ends where its makespan is this.
  std::function<bool(const Words&)> is_sound;  // Asked of each order with a new least makespan before it is kept.
  std::function<void(std::int64_t evaluations, double makespan)> on_progress;
};

struct ChainResult {
  Found best;  // `start`, or an order with a smaller makespan.
  std::int64_t evaluations = 0;
};

// Deterministic. `start` can run and fits its limits.
ChainResult anneal(const Lanes& lanes, const Found& start, const ChainOptions& options);

}  // namespace dualpipe::search
