#include "plugin/schedule/balanced_order.h"

#include <optional>

namespace dualpipe {
namespace {

// Sums of the same costs in another order may differ in their last digits.
constexpr double kTie = 1e-9;

double compute_cost(const std::vector<ChainLink>& chain, int links) {
  double sum = 0;
  for (int link = 0; link < links; ++link) {
    sum += chain[link].kind == PhaseKind::kCompute ? chain[link].cost : 0;
  }
  return sum;
}

double compute_cost(const std::vector<ChainLink>& chain) { return compute_cost(chain, static_cast<int>(chain.size())); }

// What follows a communication has been ready for longer than what a compute has just made ready.
std::optional<PhasePart> next_post(const PairChains& chains, const PairState& state) {
  for (const bool must : {false, true}) {
    for (const PhasePart part : {PhasePart::kForward, PhasePart::kInput}) {
      if (may_post(chains, state, part) && must_post(chains, state, part) == must) {
        return part;
      }
    }
  }
  return std::nullopt;
}

class Balance {
 public:
  explicit Balance(const PairChains& chains)
      : chains_(chains),
        forward_cost_(compute_cost(chains.forward)),
        backward_cost_(compute_cost(chains.input) + compute_cost(chains.weight)) {}

  std::optional<PhasePart> next(const PairState& state) const {
    if (const std::optional<PhasePart> part = next_post(chains_, state)) {
      return part;
    }
    if (may_move(chains_, state, PhasePart::kWeight)) {
      return PhasePart::kWeight;
    }
    const bool forward = may_move(chains_, state, PhasePart::kForward);
    const bool backward = may_move(chains_, state, PhasePart::kInput);
    if (forward && (!backward || !forward_leads(state))) {
      return PhasePart::kForward;
    }
    return backward ? std::optional(PhasePart::kInput) : std::nullopt;
  }

 private:
  bool forward_leads(const PairState& state) const {
    const double forward = compute_cost(chains_.forward, state.forward);
    const double backward = compute_cost(chains_.input, state.input) + compute_cost(chains_.weight, state.weight);
    return forward * backward_cost_ > backward * forward_cost_ * (1 + kTie);
  }

  const PairChains& chains_;
  double forward_cost_;
  double backward_cost_;
};

}  // namespace

PairOrder balanced_order(const PairChains& chains) {
  const Balance balance(chains);
  PairOrder order;
  PairState state;
  while (const std::optional<PhasePart> part = balance.next(state)) {
    order.push_back(*part);
    move(chains, state, *part);
  }
  return order;
}

}  // namespace dualpipe
