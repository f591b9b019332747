#include <algorithm>
#include <limits>

#include "plugin/search/evaluate.h"
#include "plugin/search/first_orders.h"

namespace dualpipe::search {
namespace {

constexpr double kGain = 1e-9;  // Least gain for which two letters become a pair.

struct Choice {
  Letter letter;
  double start = std::numeric_limits<double>::infinity();
  int priority = 0;  // At equal start, the lower goes first.

  bool is_before(const Choice& other) const {
    return start < other.start || (start == other.start && priority < other.priority);
  }
  bool exists() const { return start < std::numeric_limits<double>::infinity(); }
};

class Greedy {
 public:
  Greedy(const Lanes& lanes, const GreedyPolicy& policy)
      : lanes_(lanes),
        policy_(policy),
        forward_ends_(lanes.lanes.size()),
        backward_ends_(lanes.lanes.size()),
        unweighted_(lanes.lanes.size(), 0),
        free_(lanes.ranks(), 0),
        live_(lanes.ranks(), 0),
        live_bytes_(lanes.ranks(), 0),
        words_(lanes.ranks()) {}

  std::optional<Words> run() {
    std::vector<Choice> choices(lanes_.ranks());
    for (int rank = 0; rank < lanes_.ranks(); ++rank) choices[rank] = choose(rank);
    while (true) {
      const auto next = std::min_element(choices.begin(), choices.end(),
                                         [](const Choice& a, const Choice& b) { return a.is_before(b); });
      if (!next->exists()) break;
      const int rank = static_cast<int>(next - choices.begin());
      for (const int touched : take(rank, *next)) choices[touched] = choose(touched);
    }
    return is_complete() ? std::optional<Words>(std::move(words_)) : std::nullopt;
  }

 private:
  const Lane& lane(int index) const { return lanes_.lanes[index]; }

  double forward_start(int index) const {
    const std::size_t turn = forward_ends_[index].size();
    const Lane& own = lane(index);
    if (static_cast<int>(turn) == lanes_.per_lane || !has_room(index)) return kNone;
    if (own.previous < 0) return free_[own.rank];
    if (forward_ends_[own.previous].size() <= turn) return kNone;
    return std::max(free_[own.rank], forward_ends_[own.previous][turn] + own.previous_latency);
  }

  double backward_start(int index) const {
    const std::size_t turn = backward_ends_[index].size();
    const Lane& own = lane(index);
    if (forward_ends_[index].size() <= turn) return kNone;
    if (own.next < 0) return free_[own.rank];
    if (backward_ends_[own.next].size() <= turn) return kNone;
    return std::max(free_[own.rank], backward_ends_[own.next][turn] + own.next_latency);
  }

  // Room for one more of the lane, and then for one of each lane of the rank that its micro-batch still comes to.
  bool has_room(int index) const {
    const int rank = lane(index).rank;
    int wanted = 0;
    double wanted_bytes = 0;
    for (const int other : lanes_.of_rank[rank]) {
      const bool is_later = lane(other).first_micro_batch == lane(index).first_micro_batch && other >= index;
      wanted += is_later;
      wanted_bytes += is_later ? lane(other).activation_bytes : 0;
    }
    return (!lanes_.max_activations || live_[rank] + wanted <= *lanes_.max_activations) &&
           (!lanes_.counts_bytes || live_bytes_[rank] + wanted_bytes <= lanes_.room_bytes[rank]);
  }

  Choice choose(int rank) const {
    Choice best;
    const auto offer = [&](const Choice& choice) {
      if (choice.is_before(best)) best = choice;
    };
    for (const int first : lanes_.of_rank[rank]) {
      const double forward = forward_start(first);
      const double backward = backward_start(first);
      const auto name = static_cast<std::uint16_t>(first);
      offer({{LetterKind::kForward, name, 0}, forward, policy_.backward_first ? 2 : 1});
      offer({{policy_.split ? LetterKind::kBackwardInput : LetterKind::kBackward, name, 0},
             backward,
             policy_.backward_first ? 1 : 2});
      if (unweighted_[first] > 0) offer({{LetterKind::kBackwardWeight, name, 0}, free_[rank], 3});
      for (const int second : lanes_.of_rank[rank]) offer(pair_choice(first, second, forward));
    }
    return best;
  }

  Choice pair_choice(int first, int second, double forward) const {
    const Lane& own = lane(first);
    const double apart = duration(own, LetterKind::kForward) + duration(lane(second), LetterKind::kBackward);
    if (forward == kNone || duration(own, LetterKind::kPair) + kGain > apart) return {};
    // Of one lane, the backward must be that of a micro-batch before.
    const double start = std::max(forward, backward_start(second));
    return {{LetterKind::kPair, static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(second)}, start, 0};
  }

  // Returns the ranks whose choice may have changed.
  std::vector<int> take(int rank, const Choice& choice) {
    const Letter& letter = choice.letter;
    const double end = choice.start + duration(lane(letter.lane), letter.kind);
    std::vector<int> touched = {rank};
    const auto touch = [&](int index) {
      if (index >= 0 && lane(index).rank != rank) touched.push_back(lane(index).rank);
    };
    if (letter.has_forward()) {
      forward_ends_[letter.lane].push_back(end);
      count_live(letter.lane, 1);
      touch(lane(letter.lane).next);
    }
    const int back = letter.backward_lane();
    if (letter.has_backward()) {
      backward_ends_[back].push_back(end);
      unweighted_[back] += letter.kind == LetterKind::kBackwardInput;
      touch(lane(back).previous);
    }
    unweighted_[back] -= letter.kind == LetterKind::kBackwardWeight;
    if (letter.frees()) count_live(back, -1);
    free_[rank] = end;
    words_[rank].push_back(letter);
    return touched;
  }

  void count_live(int index, int change) {
    live_[lane(index).rank] += change;
    live_bytes_[lane(index).rank] += change * lane(index).activation_bytes;
  }

  bool is_complete() const {
    for (std::size_t index = 0; index < lanes_.lanes.size(); ++index) {
      if (static_cast<int>(backward_ends_[index].size()) < lanes_.per_lane || unweighted_[index] > 0) return false;
    }
    return true;
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  const Lanes& lanes_;
  const GreedyPolicy policy_;
  std::vector<std::vector<double>> forward_ends_;
  std::vector<std::vector<double>> backward_ends_;
  std::vector<int> unweighted_;  // I without their W, by lane.
  std::vector<double> free_;
  std::vector<int> live_;
  std::vector<double> live_bytes_;
  Words words_;
};

}  // namespace

std::optional<Words> greedy_order(const Lanes& lanes, const GreedyPolicy& policy) {
  std::optional<Words> words = Greedy(lanes, policy).run();
  if (!words) return std::nullopt;
  settle_mirrors(lanes, *words);
  Evaluator evaluator(lanes);
  for (int rank = 0; rank < lanes.ranks(); ++rank) {
    if (!evaluator.check_word(rank, (*words)[rank]).holds) return std::nullopt;
  }
  return words;
}

}  // namespace dualpipe::search
