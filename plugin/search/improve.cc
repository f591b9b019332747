#include "plugin/search/improve.h"

#include <algorithm>
#include <future>

namespace dualpipe::search {
namespace {

constexpr int kChains = 2;  // Of a round.
constexpr int kRounds = 4;

// A chain begins as hot as the default where it has this many evaluations per letter, and in proportion colder with
// fewer, which small steps serve better. The two chains of a round differ, so that one of them suits.
constexpr double kEvaluationsPerLetter[kChains] = {8000, 500};

bool is_better(const Found& one, const Found& other) {
  return one.score.makespan != other.score.makespan ? one.score.makespan < other.score.makespan
                                                    : one.score.ends < other.score.ends;
}

std::vector<ChainResult> run_round(const Lanes& lanes, const std::vector<const Found*>& starts,
                                   const std::vector<ChainOptions>& options, int threads) {
  const auto policy = threads > 1 ? std::launch::async : std::launch::deferred;
  std::vector<std::future<ChainResult>> others;
  for (std::size_t i = 1; i < starts.size(); ++i) {
    others.push_back(std::async(policy, anneal, std::cref(lanes), std::cref(*starts[i]), std::cref(options[i])));
  }
  std::vector<ChainResult> results = {anneal(lanes, *starts[0], options[0])};
  for (std::future<ChainResult>& other : others) results.push_back(other.get());
  return results;
}

class Rounds {
 public:
  Rounds(const Lanes& lanes, const std::vector<Found>& starts, const ImproveOptions& options)
      : lanes_(lanes), options_(options), pool_(starts) {
    std::stable_sort(pool_.begin(), pool_.end(), is_better);
    for (const Word& word : pool_[0].words) letters_ += static_cast<double>(word.size());
  }

  Improved run() {
    for (int round = 0; round < kRounds && pool_[0].score.makespan > options_.bound; ++round) run_one(round);
    return {std::move(pool_[0]), evaluations_};
  }

 private:
  // The chains of the first round begin at the two best starts, the others at the best order and the runner-up.
  void run_one(int round) {
    std::vector<const Found*> starts;
    std::vector<ChainOptions> options;
    for (int chain = 0; chain < kChains; ++chain) {
      starts.push_back(&pool_[std::min<std::size_t>(chain, pool_.size() - 1)]);
      options.push_back(chain_options(round, chain));
    }
    std::vector<ChainResult> results = run_round(lanes_, starts, options, options_.threads);
    std::vector<Found> next;
    for (ChainResult& result : results) {
      evaluations_ += result.evaluations;
      next.push_back(std::move(result.best));
    }
    next.push_back(std::move(pool_[0]));
    std::stable_sort(next.begin(), next.end(), is_better);
    pool_ = std::move(next);
  }

  ChainOptions chain_options(int round, int chain) const {
    ChainOptions options;
    options.evaluations = options_.evaluations / (kRounds * kChains);
    options.seed = options_.seed * 1000 + static_cast<std::uint64_t>(round * kChains + chain);
    const double per_letter = static_cast<double>(options.evaluations) / letters_;
    options.hot *= std::min(1.0, per_letter / kEvaluationsPerLetter[chain]);
    options.cold = std::min(options.cold, options.hot);
    options.bound = options_.bound;
    options.is_sound = [this](const Words& words) { return is_sound(lanes_, words); };
    if (chain == 0 && options_.on_progress) {
      options.on_progress = [this](std::int64_t evaluations, double makespan) {
        options_.on_progress(evaluations_ + kChains * evaluations, std::min(makespan, pool_[0].score.makespan));
      };
    }
    return options;
  }

  const Lanes& lanes_;
  const ImproveOptions& options_;
  std::vector<Found> pool_;  // The best first.
  double letters_ = 0;
  std::int64_t evaluations_ = 0;
};

}  // namespace

Improved improve(const Lanes& lanes, const std::vector<Found>& starts, const ImproveOptions& options) {
  return Rounds(lanes, starts, options).run();
}

}  // namespace dualpipe::search
