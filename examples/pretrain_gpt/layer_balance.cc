#include "examples/pretrain_gpt/layer_balance.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

namespace pretrain_gpt {
namespace {

constexpr double kRounding = 1 + 1e-9;

// What one step of the division decides: one stage, or the outermost two of those left.
struct Part {
  double rank = 0;     // Time of its rank.
  double longest = 0;  // Of its stages.
  double squares = 0;
};

struct Limits {
  double rank = std::numeric_limits<double>::infinity();
  double longest = std::numeric_limits<double>::infinity();

  bool hold(const Part& part) const { return part.rank <= rank && part.longest <= longest; }
};

// How good a division is so far, given that and its next part. Less is better.
using Goal = std::function<double(double, const Part&)>;

struct Division {
  double value = 0;
  std::vector<std::int64_t> counts;
};

class Balance {
 public:
  Balance(const LayerTimes& times, int num_stages, StagePlaces places)
      : times_(times),
        stages_(num_stages),
        is_folded_(places == StagePlaces::kFolded),
        steps_(is_folded_ ? num_stages / 2 : num_stages),
        layers_(static_cast<int>(times.layers.size())) {
    sums_.push_back(0);
    for (const double time : times.layers) {
      sums_.push_back(sums_.back() + time);
    }
  }

  // The least value of `goal` among divisions within the limits, of which there is one.
  Division best(const Limits& limits, const Goal& goal) const {
    std::vector<Level> levels = {{{{0, layers_}, {}}}};
    for (int step = 0; step < steps_; ++step) {
      levels.push_back(next_level(levels.back(), step, limits, goal));
    }
    return trace_back(levels);
  }

  // The longest rank where all stages have as many layers, or one more.
  double longest_rank_if_even() const {
    double longest = 0;
    for (int step = 0; step < steps_; ++step) {
      longest = std::max(longest, part(step, even_begin(step), even_begin(step + 1), even_begin(stages_ - 1 - step),
                                       even_begin(stages_ - step))
                                      .rank);
    }
    return longest;
  }

 private:
  using Taken = std::pair<int, int>;  // Layers before the first and from the second on.
  struct Way {
    double value = 0;
    Taken from{};
  };
  using Level = std::map<Taken, Way>;

  int even_begin(int stage) const { return static_cast<int>(static_cast<std::int64_t>(layers_) * stage / stages_); }

  double time(int stage, int begin, int end) const {
    return sums_[end] - sums_[begin] + (stage == 0 ? times_.embedding : 0) + (stage == stages_ - 1 ? times_.head : 0);
  }

  Part part(int step, int begin, int end, int back_begin, int back_end) const {
    const double front = time(step, begin, end);
    if (!is_folded_) {
      return {front, front, front * front};
    }
    const double back = time(stages_ - 1 - step, back_begin, back_end);
    return {front + back, std::max(front, back), front * front + back * back};
  }

  bool leaves_enough(int step, const Taken& taken, const Limits& limits) const {
    const int steps_left = steps_ - 1 - step;
    const int left = taken.second - taken.first;
    if (steps_left == 0) {
      return left == 0;
    }
    const bool has_last = !is_folded_;  // Otherwise embedding and head are in the first step.
    const double time_left = sums_[taken.second] - sums_[taken.first] + (has_last ? times_.head : 0);
    return left >= steps_left * (is_folded_ ? 2 : 1) && time_left <= steps_left * limits.rank * kRounding;
  }

  Level next_level(const Level& level, int step, const Limits& limits, const Goal& goal) const {
    Level next;
    for (const auto& [taken, way] : level) {
      for (int end = taken.first + 1; end <= taken.second; ++end) {
        if (time(step, taken.first, end) > limits.longest || time(step, taken.first, end) > limits.rank) {
          break;
        }
        add_backs(next, taken, way.value, end, step, limits, goal);
      }
    }
    return next;
  }

  void add_backs(Level& next, const Taken& taken, double value, int end, int step, const Limits& limits,
                 const Goal& goal) const {
    const int first = is_folded_ ? taken.second - 1 : taken.second;
    const int last = is_folded_ ? end : taken.second;
    for (int begin = first; begin >= last; --begin) {
      const Part added = part(step, taken.first, end, begin, taken.second);
      if (!limits.hold(added)) {
        break;
      }
      if (leaves_enough(step, {end, begin}, limits)) {
        const Way way{goal(value, added), taken};
        const auto [found, is_new] = next.try_emplace({end, begin}, way);
        if (!is_new && way.value < found->second.value) {
          found->second = way;
        }
      }
    }
  }

  Division trace_back(const std::vector<Level>& levels) const {
    auto end = levels.back().begin();
    for (auto candidate = end; candidate != levels.back().end(); ++candidate) {
      end = candidate->second.value < end->second.value ? candidate : end;
    }
    Division division{end->second.value, std::vector<std::int64_t>(stages_)};
    Taken taken = end->first;
    for (int step = steps_ - 1; step >= 0; --step) {
      const Taken from = levels[step + 1].at(taken).from;
      division.counts[step] = taken.first - from.first;
      if (is_folded_) {
        division.counts[stages_ - 1 - step] = from.second - taken.second;
      }
      taken = from;
    }
    return division;
  }

  const LayerTimes& times_;
  int stages_;
  bool is_folded_;
  int steps_;
  int layers_;
  std::vector<double> sums_;  // Of the first layers.
};

}  // namespace

std::vector<std::int64_t> balance(const LayerTimes& times, int num_stages, StagePlaces places) {
  const Balance balance(times, num_stages, places);
  Limits limits;
  limits.rank = balance.longest_rank_if_even();
  limits.rank = balance.best(limits, [](double value, const Part& part) { return std::max(value, part.rank); }).value;
  limits.longest =
      balance.best(limits, [](double value, const Part& part) { return std::max(value, part.longest); }).value;
  return balance.best(limits, [](double value, const Part& part) { return value + part.squares; }).counts;
}

}  // namespace pretrain_gpt
