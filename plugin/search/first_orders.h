// plugin/search/first_orders.h
//
// Orders to start from, made from nothing but the lanes: what the search begins with where no named schedule fits, and
// beside one that does.
#pragma once

#include <optional>

#include "plugin/search/lanes.h"

namespace dualpipe::search {

struct GreedyPolicy {
  bool backward_first = true;  // Of an F and a backward that could start at once, and do not pair; else F first.
  bool split = true;           // I and W; else B alone.
};

// Event by event, the letter that can start first on any rank: pairs where they gain, W where nothing else can start.
// Keeps room for the later lanes of a rank, so that a micro-batch which began can end. Nothing where the ranks wait for
// each other all the same, or where mirrors cannot end alike under the limit.
std::optional<Words> greedy_order(const Lanes& lanes, const GreedyPolicy& policy);

// One micro-batch after the other: the least that any order of the placement holds, but for what the mirrors of a
// bidirectional placement need in order to end alike.
Words sequential_order(const Lanes& lanes);

// Lets the last W of one stage wait for the end of the row wherever two mirrors end their stages in different orders.
void settle_mirrors(const Lanes& lanes, Words& words);

}  // namespace dualpipe::search
