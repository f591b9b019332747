// plugin/schedule/faster_order.h
//
// faster_order(): the fastest order of an overlapped pair, by dynamic programming over (F done, I done, W done).
#pragma once

#include <optional>

#include "plugin/schedule/pair_chains.h"

namespace dualpipe {

// An order whose makespan is below `limit` by more than 1e-9 of it, and the least of all orders that run the W in the
// order of their I; nothing where there is none. Where three or more communications follow one another without a
// compute between them, one of the other chain may be posted sooner than in the best order, since each is posted right
// behind the last step that it needs.
//
// Orders that have taken the same links are compared by (now, arrival of the forward's communication, of the
// backward's); what is later in all three is dropped, and so is what cannot end below `limit`. Of what is left after
// each move, only the most promising are kept, so many that all together stay near 200,000; where that leaves anything
// out, which takes many layers, the result may miss the optimum. 32 MoE layers per side take 0.05 s.
std::optional<PairOrder> faster_order(const PairChains& chains, double limit);

}  // namespace dualpipe
