// plugin/schedule/pair_chains.h
//
// The two chains of an overlapped pair and how far a rank is along them: what the orders of merge() are made from.
#pragma once

#include <vector>

#include "plugin/schedule/merge.h"

namespace dualpipe {

struct ChainLink {
  PhaseKind kind = PhaseKind::kCompute;
  int phase = 0;
  double cost = 0;
};

// All F in order; all I in order, without the communications that have no way back; the W, each in the order of its I.
struct PairChains {
  std::vector<ChainLink> forward;
  std::vector<ChainLink> input;
  std::vector<ChainLink> weight;
  std::vector<int> ready_weights;  // [n]: how many W the first n links of `input` make ready.

  const std::vector<ChainLink>& of(PhasePart part) const;
};

PairChains make_chains(const Phases& forward, const Phases& backward);

// A move takes the next link of a chain: a compute runs, a communication is awaited where it is the one before, and
// posted. An order is a list of moves that takes every link.
using PairOrder = std::vector<PhasePart>;

// What a rank has started, and when what is under way arrives: not before `now`.
struct PairState {
  int forward = 0;
  int input = 0;
  int weight = 0;
  double now = 0;
  double forward_arrival = 0;
  double input_arrival = 0;

  int started(PhasePart part) const;
  double arrival(PhasePart part) const { return part == PhasePart::kForward ? forward_arrival : input_arrival; }
  double end() const;  // When nothing is under way any more.
};

// The next link is a communication that can be posted without waiting.
bool may_post(const PairChains& chains, const PairState& state, PhasePart part);
// ... and all it needs is computed: it is posted before anything else but what may_post().
bool must_post(const PairChains& chains, const PairState& state, PhasePart part);

// The chain's next link may be taken: it exists, its W is ready, and nothing else must be posted first.
bool may_move(const PairChains& chains, const PairState& state, PhasePart part);
void move(const PairChains& chains, PairState& state, PhasePart part);

}  // namespace dualpipe
