// tests/search/random_orders.h
//
// Orders and costs drawn at random for property tests.
#pragma once

#include <string>
#include <vector>

#include "plugin/search/random.h"
#include "plugin/search/words.h"

namespace dualpipe::search {

struct DrawnLanes {
  std::string text;  // For failure output.
  Lanes lanes;
};

// One of the placements with up to 4 ranks and 8 micro-batches under random costs, in quarters, and limits or none.
DrawnLanes draw_lanes(Random& random);

// A named schedule or a greedy or sequential order of the lanes, then changed at random `changes` times with nothing
// asked of the outcome but that each word keeps its own order and limit.
Words draw_words(const Lanes& lanes, Random& random, int changes);

}  // namespace dualpipe::search
