#include "plugin/search/choose_schedule.h"

#include <algorithm>
#include <array>

#include "plugin/schedule/error.h"
#include "plugin/search/candidate.h"
#include "plugin/search/improve.h"
#include "plugin/search/reason.h"
#include "plugin/search/words.h"

namespace dualpipe {

using namespace search;

namespace {

constexpr std::array<std::string_view, 3> kPlacementNames = {"loop", "v", "bidirectional"};

// Simulated actions that a second of budget is worth.
constexpr double kActionsPerSecond = 120e6;
constexpr double kMostEvaluations = 1e15;  // More than a lifetime of search, and what a chain can count.

// A candidate with the best order of it so far.
struct Contender {
  const Candidate* candidate;
  std::vector<Found> starts;  // The best first.
  double bound;

  const Found& best() const { return starts[0]; }
};

bool is_faster(const Found& one, const Found& other) { return one.score.makespan < other.score.makespan; }

std::vector<Contender> make_contenders(const std::vector<Candidate>& candidates) {
  std::vector<Contender> contenders;
  for (const Candidate& candidate : candidates) {
    if (!candidate.fits_at_all()) continue;
    Contender contender{&candidate, starts_of(candidate), lower_bound(candidate.lanes)};
    std::stable_sort(contender.starts.begin(), contender.starts.end(), is_faster);
    if (!contender.starts.empty()) contenders.push_back(std::move(contender));
  }
  return contenders;
}

Contender& fastest(std::vector<Contender>& contenders) {
  return *std::min_element(contenders.begin(), contenders.end(), [](const Contender& one, const Contender& other) {
    return is_faster(one.best(), other.best());
  });
}

class Chooser {
 public:
  Chooser(const AutoRequest& request, std::vector<Contender> contenders)
      : request_(request), contenders_(std::move(contenders)) {
    for (const Contender& contender : contenders_) evaluations_ += static_cast<std::int64_t>(contender.starts.size());
  }

  // Half of the budget goes to all placements alike, the other to the one that did best, or all of it to the only one.
  // A placement that cannot beat what is there is left out.
  const Contender& run() {
    const double share = contenders_.size() == 1 ? 1 : 0.5 / static_cast<double>(contenders_.size());
    for (Contender& contender : contenders_) {
      if (contender.bound < fastest(contenders_).best().score.makespan) improve_one(contender, share, 1);
    }
    if (share < 1) improve_one(fastest(contenders_), 0.5, 2);
    return fastest(contenders_);
  }

  std::int64_t evaluations() const { return evaluations_; }

 private:
  std::int64_t budget(const Candidate& candidate, double share) const {
    const double letters = 3.0 * static_cast<double>(candidate.lanes.lanes.size()) * candidate.lanes.per_lane;
    const double all = request_.evaluations ? static_cast<double>(*request_.evaluations)
                                            : request_.time_budget_s * kActionsPerSecond / letters;
    return static_cast<std::int64_t>(share * std::min(all, kMostEvaluations));
  }

  void improve_one(Contender& contender, double share, std::uint64_t turn) {
    ImproveOptions options;
    options.evaluations = budget(*contender.candidate, share);
    options.seed = 10 * request_.seed + turn;
    options.threads = request_.threads;
    options.bound = contender.bound;
    if (request_.on_progress) {
      options.on_progress = [&](std::int64_t evaluations, double makespan) {
        const double best = std::min(makespan, fastest(contenders_).best().score.makespan);
        request_.on_progress({(done_ + share * std::min(1.0, static_cast<double>(evaluations) /
                                                                 static_cast<double>(options.evaluations))),
                              best});
      };
    }
    Improved improved = improve(contender.candidate->lanes, contender.starts, options);
    evaluations_ += improved.evaluations;
    done_ += share;
    contender.starts.insert(contender.starts.begin(), std::move(improved.best));
  }

  const AutoRequest& request_;
  std::vector<Contender> contenders_;
  std::int64_t evaluations_ = 0;
  double done_ = 0;
};

NamedResult describe(const Candidate& candidate, const NamedOrder& named) {
  return {named.name, named.order.score.makespan, candidate.lanes.placement.stages(),
          candidate.peak_activations(named.order.words), candidate.peak_memory_gb(named.order.words)};
}

std::optional<NamedResult> best_named(const std::vector<Candidate>& candidates) {
  std::optional<NamedResult> best;
  for (const Candidate& candidate : candidates) {
    for (const NamedOrder& named : candidate.named) {
      if (!best || named.order.score.makespan < best->makespan) best = describe(candidate, named);
    }
  }
  return best;
}

// Below every order of every placement, of the winner's and of the others.
double bound_of(const std::vector<Candidate>& candidates) {
  double bound = kNever;
  for (const Candidate& candidate : candidates) {
    if (candidate.fits_at_all()) bound = std::min(bound, lower_bound(candidate.lanes));
  }
  return bound;
}

}  // namespace

std::string_view to_string(PlacementKind kind) { return kPlacementNames[static_cast<std::size_t>(kind)]; }

PlacementKind parse_placement_kind(std::string_view origin, std::string_view word) {
  const auto name = std::find(kPlacementNames.begin(), kPlacementNames.end(), word);
  if (name == kPlacementNames.end()) {
    throw ScheduleError(origin, "the placement must be loop, v or bidirectional, got \"" + std::string(word) + "\"");
  }
  return static_cast<PlacementKind>(name - kPlacementNames.begin());
}

AutoChoice choose_schedule(const AutoRequest& request) {
  const std::vector<Candidate> candidates = make_candidates(request);
  std::vector<Contender> contenders = make_contenders(candidates);
  if (contenders.empty()) refuse_limits(candidates, request);
  Chooser chooser(request, std::move(contenders));
  const Contender& winner = chooser.run();
  const Candidate& candidate = *winner.candidate;
  const Words& words = winner.best().words;
  check(is_sound(candidate.lanes, words), "what is chosen is valid");
  AutoChoice choice{.schedule = to_schedule(candidate.lanes, words),
                    .placement = candidate.kind,
                    .cost = candidate.cost,
                    .bytes = candidate.bytes,
                    .makespan = winner.best().score.makespan,
                    .peak_activations = candidate.peak_activations(words),
                    .peak_memory_gb = candidate.peak_memory_gb(words),
                    .best_named = best_named(candidates),
                    .bound = bound_of(candidates),
                    .evaluations = chooser.evaluations(),
                    .reason = ""};
  choice.reason = reason_for(choice, request);
  return choice;
}

}  // namespace dualpipe
