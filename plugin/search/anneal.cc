#include "plugin/search/anneal.h"

#include <numeric>
#include <utility>

#include "plugin/schedule/error.h"
#include "plugin/search/mutate.h"
#include "plugin/search/slots.h"

namespace dualpipe::search {
namespace {

constexpr double kEndsWeight = 0.02;     // Of the mean end of the ranks beside the makespan.
constexpr double kLessTime = 1e-9;       // Relative: what counts as a smaller makespan.
constexpr int kDrawsPerEvaluation = 40;  // A chain ends after so many draws for each evaluation that it was given.
constexpr int kReports = 64;             // Of progress, per chain.

class Chain {
 public:
  Chain(const Lanes& lanes, const Found& start, const ChainOptions& options)
      : lanes_(lanes),
        options_(options),
        evaluator_(lanes),
        slots_(lanes),
        random_(options.seed),
        words_(start.words),
        best_(start),
        busy_(lanes.ranks()) {
    for (int rank = 0; rank < lanes.ranks(); ++rank) {
      const WordCheck word = evaluator_.check_word(rank, words_[rank]);
      check(word.holds, "a chain starts from an order that fits");
      busy_[rank] = word.busy;
    }
    value_ = value(start.score);
    unit_ = mean_duration();
  }

  ChainResult run() {
    std::int64_t draws = 0;
    while (evaluations_ < options_.evaluations && draws < options_.evaluations * kDrawsPerEvaluation &&
           best_.score.makespan > options_.bound * (1 + kLessTime)) {
      ++draws;
      try_change();
    }
    return {std::move(best_), evaluations_};
  }

 private:
  double value(const Score& score) const { return score.makespan + kEndsWeight * score.ends / lanes_.ranks(); }

  double mean_duration() const {
    std::size_t letters = 0;
    for (const Word& word : words_) letters += word.size();
    return std::accumulate(busy_.begin(), busy_.end(), 0.0) / static_cast<double>(letters);
  }

  // Falls as a parabola, without a library function.
  double temperature() const {
    const double left = 1 - static_cast<double>(evaluations_) / static_cast<double>(options_.evaluations);
    return unit_ * (options_.cold + (options_.hot - options_.cold) * left * left);
  }

  void try_change() {
    const int rank = random_.below(lanes_.ranks());
    Word& word = words_[rank];
    before_.assign(word.begin(), word.end());
    const bool twice = random_.below(4) == 0;
    if (!mutate(word, random_) || (twice && !mutate(word, random_)) || !accept(rank)) {
      word.assign(before_.begin(), before_.end());
    }
  }

  bool accept(int rank) {
    const WordCheck word = evaluator_.check_word(rank, words_[rank]);
    if (!word.holds) return false;
    const double busy_before = std::exchange(busy_[rank], word.busy);
    const double limit = value_ + temperature() * random_.exponential();
    const Score score = evaluate(limit);
    if (value(score) <= limit && mirrors_agree(lanes_, words_) && slots_.holds(words_, rank)) {
      value_ = value(score);
      keep_if_best(score);
      return true;
    }
    busy_[rank] = busy_before;
    return false;
  }

  // No rank ends before it has been busy, which bounds the ends from below.
  Score evaluate(double limit) {
    const double least_ends = std::accumulate(busy_.begin(), busy_.end(), 0.0);
    if (evaluations_++ % (options_.evaluations / kReports + 1) == 0 && options_.on_progress) {
      options_.on_progress(evaluations_, best_.score.makespan);
    }
    return evaluator_.evaluate(words_, busy_, limit - kEndsWeight * least_ends / lanes_.ranks());
  }

  void keep_if_best(const Score& score) {
    if (score.makespan < best_.score.makespan * (1 - kLessTime) && options_.is_sound(words_)) best_ = {words_, score};
  }

  const Lanes& lanes_;
  const ChainOptions& options_;
  Evaluator evaluator_;
  SlotCheck slots_;
  Random random_;
  Words words_;
  Word before_;
  Found best_;
  std::vector<double> busy_;
  double value_ = 0;
  double unit_ = 0;
  std::int64_t evaluations_ = 0;
};

}  // namespace

ChainResult anneal(const Lanes& lanes, const Found& start, const ChainOptions& options) {
  return Chain(lanes, start, options).run();
}

}  // namespace dualpipe::search
