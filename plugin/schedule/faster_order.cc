#include "plugin/schedule/faster_order.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace dualpipe {
namespace {

constexpr double kGain = 1e-9;
constexpr std::size_t kMostLabels = 200'000;
constexpr std::size_t kLeastPerLevel = 64;
constexpr PhasePart kParts[] = {PhasePart::kWeight, PhasePart::kForward, PhasePart::kInput};

// How an order came about: the label of the level before, and the move from there.
struct Origin {
  std::uint32_t label = 0;
  PhasePart move = PhasePart::kForward;
};

struct Label {
  PairState state;
  Origin origin;
  double bound = 0;  // No order that starts like this one ends sooner.
};

auto taken(const PairState& state) { return std::tuple(state.forward, state.input, state.weight); }

auto sort_key(const Label& label) {
  const PairState& state = label.state;
  return std::tuple(state.forward, state.input, state.weight, state.now, state.forward_arrival, state.input_arrival);
}

// Whatever follows `later` can follow `sooner` and ends no later.
bool dominates(const PairState& sooner, const PairState& later) {
  return sooner.now <= later.now && sooner.forward_arrival <= later.forward_arrival &&
         sooner.input_arrival <= later.input_arrival;
}

// Sums over the links of a chain from each link on.
struct Tail {
  std::vector<double> compute;
  std::vector<double> communication;

  explicit Tail(const std::vector<ChainLink>& chain) : compute(chain.size() + 1), communication(chain.size() + 1) {
    for (std::size_t link = chain.size(); link-- > 0;) {
      const bool computes = chain[link].kind == PhaseKind::kCompute;
      compute[link] = compute[link + 1] + (computes ? chain[link].cost : 0);
      communication[link] = communication[link + 1] + (computes ? 0 : chain[link].cost);
    }
  }
  double both(int link) const { return compute[link] + communication[link]; }
};

class Search {
 public:
  Search(const PairChains& chains, double limit)
      : chains_(chains),
        limit_(limit * (1 - kGain)),
        forward_(chains.forward),
        input_(chains.input),
        weight_(chains.weight) {
    const bool ends_in_compute = !chains.input.empty() && chains.input.back().kind == PhaseKind::kCompute;
    last_weight_ = ends_in_compute ? chains.weight.back().cost : 0;
  }

  std::optional<PairOrder> run() {
    std::vector<Label> level = {{}};
    level[0].bound = bound_of(level[0].state);
    const std::size_t moves = chains_.forward.size() + chains_.input.size() + chains_.weight.size();
    const std::size_t most = std::max(kLeastPerLevel, kMostLabels / (moves + 1));
    while (trail_.size() < moves && !level.empty() && level[0].bound < limit_) {
      level = expand(level);
      drop_dominated(level);
      keep_promising(level, most);
      trail_.emplace_back();
      for (const Label& label : level) {
        trail_.back().push_back(label.origin);
      }
    }
    return level.empty() || trail_.size() < moves ? std::nullopt : std::optional(trace(level));
  }

 private:
  double bound_of(const PairState& state) const {
    const double compute =
        forward_.compute[state.forward] + input_.compute[state.input] + weight_.compute[state.weight];
    const double communication = forward_.communication[state.forward] + input_.communication[state.input];
    const double last_weight = state.input < static_cast<int>(chains_.input.size()) ? last_weight_ : 0;
    return std::max({state.now + compute, state.end() + communication,
                     state.forward_arrival + forward_.both(state.forward),
                     state.input_arrival + input_.both(state.input) + last_weight});
  }

  std::vector<Label> expand(const std::vector<Label>& level) const {
    std::vector<Label> next;
    for (std::size_t i = 0; i < level.size(); ++i) {
      for (const PhasePart part : kParts) {
        if (!may_move(chains_, level[i].state, part)) {
          continue;
        }
        Label label{level[i].state, {static_cast<std::uint32_t>(i), part}, 0};
        move(chains_, label.state, part);
        label.bound = bound_of(label.state);
        if (label.bound < limit_) {
          next.push_back(label);
        }
      }
    }
    return next;
  }

  static void drop_dominated(std::vector<Label>& labels) {
    std::stable_sort(labels.begin(), labels.end(),
                     [](const Label& a, const Label& b) { return sort_key(a) < sort_key(b); });
    std::vector<Label> kept;
    std::size_t group = 0;  // Where those begin in `kept` that took the same links.
    for (const Label& label : labels) {
      if (!kept.empty() && taken(kept.back().state) != taken(label.state)) {
        group = kept.size();
      }
      const auto sooner = [&](const Label& other) { return dominates(other.state, label.state); };
      if (std::none_of(kept.begin() + static_cast<std::ptrdiff_t>(group), kept.end(), sooner)) {
        kept.push_back(label);
      }
    }
    labels = std::move(kept);
  }

  static void keep_promising(std::vector<Label>& labels, std::size_t most) {
    std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.bound < b.bound; });
    if (labels.size() > most) {
      labels.resize(most);
    }
  }

  // From the first label of the last level, the one that ends soonest.
  PairOrder trace(const std::vector<Label>& level) const {
    PairOrder order;
    Origin origin = level.front().origin;
    for (std::size_t depth = trail_.size(); depth-- > 0;) {
      order.push_back(origin.move);
      if (depth > 0) {
        origin = trail_[depth - 1][origin.label];
      }
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  const PairChains& chains_;
  double limit_;
  Tail forward_;
  Tail input_;
  Tail weight_;
  double last_weight_;                      // Of the W that cannot start before all I are done.
  std::vector<std::vector<Origin>> trail_;  // [n]: of the labels after n + 1 moves.
};

}  // namespace

std::optional<PairOrder> faster_order(const PairChains& chains, double limit) { return Search(chains, limit).run(); }

}  // namespace dualpipe
