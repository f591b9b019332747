// plugin/schedule/write_pair.h
//
// write_pair(): an order of moves as the steps of a program, with the takes, waits and sends that it needs.
#pragma once

#include "plugin/schedule/pair_chains.h"

namespace dualpipe {

// `order` takes every link of make_chains(forward, backward). A chain that ends in a communication is awaited, and its
// result sent, at the first boundary at which it has arrived under the costs, where that costs no time, else at the
// end.
PairProgram write_pair(const Phases& forward, const Phases& backward, const PairOrder& order);

}  // namespace dualpipe
