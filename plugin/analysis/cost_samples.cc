#include "plugin/analysis/cost_samples.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "plugin/analysis/progress.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe::analysis {
namespace {

constexpr std::size_t kFew = 5;
constexpr std::size_t kTrim = 20;

double duration(const Span& span) { return std::max(0.0, span.end - span.start - span.waited); }

void check_action(const Action& action, int stages) {
  for (const Op& op : {action.op, action.paired.value_or(action.op)}) {
    if (!is_compute(op.kind) || op.stage >= stages) {
      throw ScheduleError("measured cost", "a step must hold F, B, I and W of stages 0 to " +
                                               std::to_string(stages - 1) + ", got " + to_string(action));
    }
  }
}

// Durations of one step. A W finds its I by micro-batch, since either may be run at any time.
void add_durations(const Timeline& step, int stages, std::vector<StageSamples>& samples) {
  std::map<std::pair<int, int>, double> halves;  // By stage and micro-batch: of I and W, the one that came first.
  for (const std::vector<Span>& row : step.ranks) {
    for (const Span& span : row) {
      check_action(span.action, stages);
      const Op& op = span.action.op;
      StageSamples& stage = samples[op.stage];
      if (span.action.is_overlap()) {
        stage.overlapped.push_back(duration(span));
        stage.overlapped_with.push_back(span.action.paired->stage);
      } else if (op.kind == Kind::kForward) {
        stage.forward.push_back(duration(span));
      } else if (op.kind == Kind::kBackward) {
        stage.backward.push_back(duration(span));
      } else {
        (op.kind == Kind::kBackwardInput ? stage.backward_input : stage.backward_weight).push_back(duration(span));
        const auto [half, is_first] = halves.try_emplace({op.stage, op.micro_batch}, duration(span));
        if (!is_first) {
          stage.backward.push_back(half->second + duration(span));
        }
      }
    }
  }
}

// Between two spans of a rank.
struct Gap {
  double free = 0;             // The end of the first.
  double start = 0;            // Of the second.
  std::optional<double> sent;  // When the last result was computed that the second needs of another rank.
  bool has_pair = false;       // The second, or that sender, is a pair.

  bool was_idle() const { return sent && *sent >= free; }
  bool had_all(double message) const { return !sent || *sent + message <= free; }
};

class GapFinder {
 public:
  GapFinder(const Timeline& step, int stages) : step_(step), stages_(stages) {
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
      for (const Span& span : step.ranks[rank]) {
        note(span.action.op, span, rank);
        if (span.action.paired) {
          note(*span.action.paired, span, rank);
        }
      }
    }
  }

  void add_to(std::vector<Gap>& gaps) const {
    for (std::size_t rank = 0; rank < step_.ranks.size(); ++rank) {
      const std::vector<Span>& row = step_.ranks[rank];
      for (std::size_t i = 1; i < row.size(); ++i) {
        gaps.push_back(gap_before(row[i], rank, row[i - 1].end));
      }
    }
  }

 private:
  struct Result {
    std::size_t rank = 0;
    double end = 0;
    bool by_pair = false;
  };

  void note(const Op& op, const Span& span, std::size_t rank) {
    if (op.kind != Kind::kBackwardWeight) {
      const Kind kind = op.kind == Kind::kForward ? Kind::kForward : Kind::kBackward;
      results_[make_op(op.stage, kind, op.micro_batch)] = {rank, span.end, span.action.is_overlap()};
    }
  }

  void look(const Op& op, std::size_t rank, Gap& gap) const {
    const std::optional<Op> producer = producer_of(op, stages_);
    const auto found = producer ? results_.find(*producer) : results_.end();
    if (found == results_.end() || found->second.rank == rank || (gap.sent && *gap.sent >= found->second.end)) {
      return;
    }
    gap.sent = found->second.end;
    gap.has_pair = found->second.by_pair;
  }

  Gap gap_before(const Span& span, std::size_t rank, double free) const {
    Gap gap{free, span.start, {}, false};
    look(span.action.op, rank, gap);
    if (span.action.paired) {
      look(*span.action.paired, rank, gap);
    }
    gap.has_pair = gap.has_pair || span.action.is_overlap();
    return gap;
  }

  const Timeline& step_;
  int stages_;
  std::map<Op, Result> results_;
};

double typical_or_zero(std::vector<double> values) { return values.empty() ? 0 : typical(std::move(values)); }

// The best evidence there is: receivers that were free before the sender was done; such pairs; and where no receiver
// was free that early, those that did not start at once.
double message_of(const std::vector<Gap>& gaps) {
  std::vector<double> singles, pairs, late;
  for (const Gap& gap : gaps) {
    if (gap.was_idle()) {
      (gap.has_pair ? pairs : singles).push_back(gap.start - *gap.sent);
    } else if (gap.sent && gap.start > gap.free) {
      late.push_back(gap.start - *gap.sent);
    }
  }
  std::vector<double>& best = !singles.empty() ? singles : !pairs.empty() ? pairs : late;
  return std::max(0.0, typical_or_zero(std::move(best)));
}

// Where every action needs another rank, those that must have had what they need.
double overhead_of(const std::vector<Gap>& gaps, double message) {
  std::vector<double> local, remote;
  for (const Gap& gap : gaps) {
    if (gap.had_all(message)) {
      (gap.sent ? remote : local).push_back(gap.start - gap.free);
    }
  }
  return std::max(0.0, typical_or_zero(local.empty() ? std::move(remote) : std::move(local)));
}

}  // namespace

CostSamples sample_costs(const std::vector<Timeline>& steps, int stages) {
  CostSamples samples;
  samples.stages.resize(stages);
  std::vector<Gap> gaps;
  for (const Timeline& step : steps) {
    add_durations(step, stages, samples.stages);
    GapFinder(step, stages).add_to(gaps);
  }
  samples.message = message_of(gaps);
  samples.overhead = overhead_of(gaps, samples.message);
  return samples;
}

double typical(std::vector<double> values) {
  check(!values.empty(), "something typical is so of at least one value");
  std::sort(values.begin(), values.end());
  const std::size_t dropped = values.size() < kFew ? 0 : std::max<std::size_t>(1, values.size() / kTrim);
  double sum = 0;
  for (std::size_t i = dropped; i < values.size() - dropped; ++i) {
    sum += values[i];
  }
  return sum / static_cast<double>(values.size() - 2 * dropped);
}

}  // namespace dualpipe::analysis
