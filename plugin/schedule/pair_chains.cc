#include "plugin/schedule/pair_chains.h"

#include <algorithm>

namespace dualpipe {
namespace {

int& started(PairState& state, PhasePart part) {
  switch (part) {
    case PhasePart::kForward:
      return state.forward;
    case PhasePart::kInput:
      return state.input;
    default:
      return state.weight;
  }
}

double& arrival(PairState& state, PhasePart part) {
  return part == PhasePart::kForward ? state.forward_arrival : state.input_arrival;
}

bool is_next_communication(const PairChains& chains, const PairState& state, PhasePart part) {
  const std::vector<ChainLink>& chain = chains.of(part);
  const int next = state.started(part);
  return next < static_cast<int>(chain.size()) && chain[next].kind == PhaseKind::kCommunication;
}

void add_backward(PairChains& chains, const PhaseSpec& spec, int phase) {
  if (spec.has_backward || spec.kind == PhaseKind::kCompute) {
    chains.input.push_back({spec.kind, phase, spec.backward_input});
    chains.ready_weights.push_back(chains.ready_weights.back());
  }
  if (spec.kind == PhaseKind::kCompute) {
    chains.weight.push_back({spec.kind, phase, spec.backward_weight});
    ++chains.ready_weights.back();
  }
}

}  // namespace

const std::vector<ChainLink>& PairChains::of(PhasePart part) const {
  return part == PhasePart::kForward ? forward : part == PhasePart::kInput ? input : weight;
}

int PairState::started(PhasePart part) const {
  return part == PhasePart::kForward ? forward : part == PhasePart::kInput ? input : weight;
}

double PairState::end() const { return std::max({now, forward_arrival, input_arrival}); }

PairChains make_chains(const Phases& forward, const Phases& backward) {
  PairChains chains;
  for (int phase = 0; phase < static_cast<int>(forward.size()); ++phase) {
    chains.forward.push_back({forward[phase].kind, phase, forward[phase].forward});
  }
  chains.ready_weights.push_back(0);
  for (int phase = static_cast<int>(backward.size()) - 1; phase >= 0; --phase) {
    add_backward(chains, backward[phase], phase);
  }
  return chains;
}

bool may_post(const PairChains& chains, const PairState& state, PhasePart part) {
  return is_next_communication(chains, state, part) &&
         (state.arrival(part) <= state.now || must_post(chains, state, part));
}

bool must_post(const PairChains& chains, const PairState& state, PhasePart part) {
  const int next = state.started(part);
  return is_next_communication(chains, state, part) &&
         (next == 0 || chains.of(part)[next - 1].kind == PhaseKind::kCompute);
}

bool may_move(const PairChains& chains, const PairState& state, PhasePart part) {
  if (must_post(chains, state, PhasePart::kForward) || must_post(chains, state, PhasePart::kInput)) {
    return may_post(chains, state, part);
  }
  if (part == PhasePart::kWeight) {
    return state.weight < chains.ready_weights[state.input];
  }
  return state.started(part) < static_cast<int>(chains.of(part).size());
}

void move(const PairChains& chains, PairState& state, PhasePart part) {
  const bool communicates = is_next_communication(chains, state, part);
  const double cost = chains.of(part)[started(state, part)++].cost;
  if (part != PhasePart::kWeight) {
    state.now = std::max(state.now, state.arrival(part));
  }
  if (communicates) {
    arrival(state, part) = state.end() + cost;  // The link is free once all that was posted has arrived.
  } else {
    state.now += cost;
  }
  state.forward_arrival = std::max(state.forward_arrival, state.now);
  state.input_arrival = std::max(state.input_arrival, state.now);
}

}  // namespace dualpipe
