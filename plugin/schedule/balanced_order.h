// plugin/schedule/balanced_order.h
//
// balanced_order(): the order of an overlapped pair in which both chains advance alike.
#pragma once

#include "plugin/schedule/pair_chains.h"

namespace dualpipe {

// Communications are posted as soon as all they need is there; one that follows another does so at the first boundary
// between computes at which that one has arrived, ahead of what the last compute made ready, or else where its chain's
// turn comes. Each W runs right behind its I; else the chain has its turn of which the smaller part of the compute cost
// (of the backward: I and W) is done, the forward at a tie.
PairOrder balanced_order(const PairChains& chains);

}  // namespace dualpipe
