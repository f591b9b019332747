// plugin/search/improve.h
//
// improve(): from orders of one placement to a faster one, by rounds of two annealing chains side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plugin/search/anneal.h"

namespace dualpipe::search {

struct ImproveOptions {
  std::int64_t evaluations = 0;  // Over all chains.
  std::uint64_t seed = 1;
  int threads = 2;   // With one, the chains of a round run one after the other, to the same end.
  double bound = 0;  // No more rounds where a makespan is this.
  std::function<void(std::int64_t evaluations, double makespan)> on_progress;
};

struct Improved {
  Found best;
  std::int64_t evaluations = 0;
};

// `starts` holds at least one order; each can run and fits. The result is sound (is_sound()) or one of the starts.
Improved improve(const Lanes& lanes, const std::vector<Found>& starts, const ImproveOptions& options);

// The order passes both validations with the default slots, and its forwards alone do with them as well (evaluation).
bool is_sound(const Lanes& lanes, const Words& words);

// A time below which no order of these lanes can come: the work of each rank with every pair that could gain, behind
// the way to it from an input; and the way of one micro-batch there and back.
double lower_bound(const Lanes& lanes);

}  // namespace dualpipe::search
