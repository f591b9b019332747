#include "plugin/search/mutate.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace dualpipe::search {
namespace {

using Lane = std::uint16_t;

constexpr int kNear = 8;  // Most letters between two that are changed together, but for one draw in four.

Letter forward(Lane lane) { return {LetterKind::kForward, lane, 0}; }
Letter backward(Lane lane) { return {LetterKind::kBackward, lane, 0}; }
Letter input(Lane lane) { return {LetterKind::kBackwardInput, lane, 0}; }
Letter weight(Lane lane) { return {LetterKind::kBackwardWeight, lane, 0}; }
Letter pair(Lane first, Lane second) { return {LetterKind::kPair, first, second}; }

class Mutation {
 public:
  Mutation(Word& word, Random& random)
      : word_(word),
        random_(random),
        size_(static_cast<int>(word.size())),
        span_(random.below(4) == 0 ? size_ : std::min(size_, kNear)) {}

  bool apply() {
    if (size_ < 2) return false;
    const int at = random_.below(size_);
    const int other = near(at);
    if (other == at) return false;
    const Letter letter = word_[at];
    if (letter.kind == LetterKind::kPair && random_.coin()) return trade(at, other);
    const int choice = random_.below(16);
    if (choice < 8) return shift(at, other);
    if (choice < 9) return exchange(at, other);
    switch (letter.kind) {
      case LetterKind::kForward:
        return make_pair(at, other);
      case LetterKind::kBackward:
        return choice < 13 ? split(at) : make_pair(other, at);
      case LetterKind::kBackwardWeight:
        return join(at);
      case LetterKind::kPair:
        return choice < 13 ? part(at, other) : part_and_split(at);
      default:
        return false;
    }
  }

 private:
  int near(int at) {
    const int distance = 1 + random_.below(span_);
    return std::clamp(random_.coin() ? at - distance : at + distance, 0, size_ - 1);
  }
  // A place behind `at`, for the W of an I there.
  int behind(int at) {
    const int left = static_cast<int>(word_.size()) - at;
    return std::min(at + 1 + random_.below(std::min(left, span_)), static_cast<int>(word_.size()));
  }
  void insert(int at, Letter letter) { word_.insert(word_.begin() + at, letter); }
  void erase(int at) { word_.erase(word_.begin() + at); }

  bool shift(int from, int to) {
    if (word_[from] == word_[to]) return false;
    const auto first = word_.begin();
    if (from < to) {
      std::rotate(first + from, first + from + 1, first + to + 1);
    } else {
      std::rotate(first + to, first + from, first + from + 1);
    }
    return true;
  }

  bool exchange(int at, int other) {
    if (word_[at] == word_[other]) return false;
    std::swap(word_[at], word_[other]);
    return true;
  }

  // B -> I ... W.
  bool split(int at) {
    const Lane lane = word_[at].lane;
    word_[at] = input(lane);
    insert(behind(at), weight(lane));
    return true;
  }

  // I ... W -> B, where the I stands. `at` is that of the W.
  bool join(int at) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const int other = near(at);
      if (word_[other] == input(word_[at].lane)) {
        word_[other] = backward(word_[at].lane);
        erase(at);
        return true;
      }
    }
    return false;
  }

  // F and B, or F, I and W -> a pair in the place of either.
  bool make_pair(int first, int second) {
    const Letter back = word_[second];
    if (word_[first].kind != LetterKind::kForward) return false;
    if (back.kind != LetterKind::kBackward && back.kind != LetterKind::kBackwardInput) return false;
    const int unneeded = back.kind == LetterKind::kBackwardInput ? nearest_weight(second) : -1;
    if (back.kind == LetterKind::kBackwardInput && unneeded < 0) return false;
    const bool in_first = random_.coin();
    word_[in_first ? first : second] = pair(word_[first].lane, back.lane);
    const int emptied = in_first ? second : first;
    erase(std::max(emptied, unneeded));
    if (unneeded >= 0) erase(std::min(emptied, unneeded));
    return true;
  }

  // The W of the same lane that stands closest.
  int nearest_weight(int at) const {
    const Letter wanted = weight(word_[at].lane);
    int nearest = -1;
    for (int i = 0; i < size_; ++i) {
      if (word_[i] == wanted && (nearest < 0 || std::abs(i - at) < std::abs(nearest - at))) nearest = i;
    }
    return nearest;
  }

  // A pair -> F and B, one of them elsewhere.
  bool part(int at, int other) {
    Letter stays = forward(word_[at].lane);
    Letter moves = backward(word_[at].paired);
    if (random_.coin()) std::swap(stays, moves);
    word_[at] = stays;
    insert(other, moves);
    return true;
  }

  // A pair -> F and I next to each other, and W behind them.
  bool part_and_split(int at) {
    const Letter before = word_[at];
    Letter stays = forward(before.lane);
    Letter moves = input(before.paired);
    if (random_.coin()) std::swap(stays, moves);
    word_[at] = stays;
    insert(at + random_.below(2), moves);
    insert(behind(at + 1), weight(before.paired));
    return true;
  }

  // The pair at `at` and the letter at `other` exchange lanes, or a half of the pair, so that as many pairs stay.
  bool trade(int at, int other) {
    Letter& own = word_[at];
    Letter& its = word_[other];
    const Letter before = own;
    switch (its.kind) {
      case LetterKind::kForward:
        if (random_.coin()) {
          std::swap(own.lane, its.lane);
          return own != before;
        }
        own = forward(before.lane);
        its = pair(its.lane, before.paired);
        return true;
      case LetterKind::kBackward:
        if (random_.coin()) {
          std::swap(own.paired, its.lane);
          return own != before;
        }
        own = backward(before.paired);
        its = pair(before.lane, its.lane);
        return true;
      case LetterKind::kBackwardInput:
        return trade_with_input(at, other);
      case LetterKind::kPair:
        random_.coin() ? std::swap(own.lane, its.lane) : std::swap(own.paired, its.paired);
        return own != before;
      default:
        return false;
    }
  }

  bool trade_with_input(int at, int other) {
    const int its_weight = nearest_weight(other);
    if (its_weight < 0 || word_[at].paired == word_[other].lane) return false;
    std::swap(word_[at].paired, word_[other].lane);
    word_[its_weight].lane = word_[other].lane;
    return true;
  }

  Word& word_;
  Random& random_;
  int size_;
  int span_;
};

}  // namespace

bool mutate(Word& word, Random& random) { return Mutation(word, random).apply(); }

}  // namespace dualpipe::search
