#include "plugin/analysis/simulate.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "plugin/analysis/progress.h"
#include "plugin/analysis/stage_table.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {

using namespace analysis;

namespace {

// Result times of one (stage, micro-batch).
struct Results {
  double forward = 0;
  double backward = 0;
};

void check_cost(const Schedule& schedule, const CostModel& cost) {
  const int stages = schedule.placement.stages();
  if (!cost.per_stage.empty() && static_cast<int>(cost.per_stage.size()) != stages) {
    throw ScheduleError("cost", "per_stage must have one entry per stage = " + std::to_string(stages) + ", got " +
                                    std::to_string(cost.per_stage.size()));
  }
}

// Times of the same walk under several costs, kept side by side: a step of the walk touches one place for all of them.
class Clocks {
 public:
  Clocks(const Schedule& schedule, const std::vector<CostModel>& costs)
      : placement_(schedule.placement),
        costs_(costs),
        count_(static_cast<int>(costs.size())),
        results_(schedule.placement.stages(), schedule.num_microbatches * count_),
        free_(schedule.rows.size() * costs.size(), 0.0) {
    for (const CostModel& cost : costs) {
      check_cost(schedule, cost);
    }
  }

  // Calls visit(index, span) for each of the costs.
  template <class Visit>
  void run(int rank, const Action& action, Visit visit) {
    const Source source = source_of(rank, action.op);
    const Source paired = action.paired ? source_of(rank, *action.paired) : Source{};
    for (int i = 0; i < count_; ++i) {
      double& free = free_[static_cast<std::size_t>(rank) * count_ + i];
      const double start = std::max({free, arrival(source, i), arrival(paired, i)});
      const double end = start + costs_[i].duration(action);
      free = end;
      record(action.op, i, end);
      if (action.paired) {
        record(*action.paired, i, end);
      }
      visit(i, Span{action, start, end});
    }
  }

 private:
  // What an operation waits for: nothing, or a result of this or another rank.
  struct Source {
    std::optional<Op> producer;
    bool is_remote = false;
  };

  Source source_of(int rank, const Op& op) const {
    const std::optional<Op> producer = producer_of(op, placement_.stages());
    return {producer, producer && placement_.rank_of(producer->stage, producer->micro_batch) != rank};
  }

  Results& results(const Op& op, int i) { return results_.at(op.stage, op.micro_batch * count_ + i); }

  double arrival(const Source& source, int i) {
    if (!source.producer) {
      return 0;
    }
    const Results& found = results(*source.producer, i);
    const double ready = source.producer->kind == Kind::kForward ? found.forward : found.backward;
    return source.is_remote ? ready + costs_[i].latency : ready;
  }

  void record(const Op& op, int i, double end) {
    if (op.kind == Kind::kForward) {
      results(op, i).forward = end;
    } else if (op.kind != Kind::kBackwardWeight) {
      results(op, i).backward = end;
    }
  }

  const Placement& placement_;
  const std::vector<CostModel>& costs_;
  const int count_;
  StageTable<Results> results_;  // By (stage, micro-batch, cost).
  std::vector<double> free_;     // By (rank, cost).
};

[[noreturn]] void refuse_deadlock(const Schedule& schedule, const Progress& progress) {
  int rank = 0;
  while (progress.reached(rank) == static_cast<int>(schedule.rows[rank].size())) {
    ++rank;
  }
  throw ScheduleError(schedule.name, "the ranks wait for each other: rank " + std::to_string(rank) + " at " +
                                         to_string(schedule.rows[rank][progress.reached(rank)]) + " needs " +
                                         to_string(progress.missing(rank)) +
                                         ", which never runs; see 'dualpipe check'");
}

// Calls visit(rank, action) for every action, producers before consumers.
template <class Visit>
void walk(const Schedule& schedule, Visit visit) {
  Progress progress(schedule);
  progress.run(visit);
  if (!progress.finished()) {
    refuse_deadlock(schedule, progress);
  }
}

}  // namespace

double Timeline::makespan() const {
  double latest = 0;
  for (const std::vector<Span>& spans : ranks) {
    latest = spans.empty() ? latest : std::max(latest, spans.back().end);
  }
  return latest;
}

double Timeline::busy(int rank) const {
  double sum = 0;
  for (const Span& span : ranks.at(rank)) {
    sum += span.end - span.start;
  }
  return sum;
}

double Timeline::utilization() const {
  const double total = makespan() * static_cast<double>(ranks.size());
  double sum = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    sum += busy(static_cast<int>(rank));
  }
  return total > 0 ? sum / total : 1;
}

double Totals::utilization() const {
  const double total = makespan * static_cast<double>(busy.size());
  return total > 0 ? std::accumulate(busy.begin(), busy.end(), 0.0) / total : 1;
}

Timeline simulate(const Schedule& schedule, const CostModel& cost) {
  const std::vector<CostModel> costs = {cost};
  Clocks clocks(schedule, costs);
  Timeline timeline;
  timeline.ranks.resize(schedule.rows.size());
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    timeline.ranks[rank].reserve(schedule.rows[rank].size());
  }
  walk(schedule, [&](int rank, const Action& action) {
    clocks.run(rank, action, [&](int, const Span& span) { timeline.ranks[rank].push_back(span); });
  });
  timeline.peak_activations = peak_activations(schedule);
  return timeline;
}

std::vector<Totals> simulate_totals(const Schedule& schedule, const std::vector<CostModel>& costs) {
  Clocks clocks(schedule, costs);
  std::vector<Totals> totals(costs.size(), Totals{0, std::vector<double>(schedule.rows.size(), 0.0)});
  walk(schedule, [&](int rank, const Action& action) {
    clocks.run(rank, action, [&](int i, const Span& span) {
      totals[i].makespan = std::max(totals[i].makespan, span.end);
      totals[i].busy[rank] += span.end - span.start;
    });
  });
  return totals;
}

std::vector<int> peak_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Row& row : schedule.rows) {
    int live = 0;
    int peak = 0;
    for (const Action& action : row) {
      if (action.op.kind == Kind::kForward) {
        peak = std::max(peak, ++live);
      }
      const Kind last = action.paired ? action.paired->kind : action.op.kind;
      if (last == Kind::kBackward || last == Kind::kBackwardWeight) {
        --live;
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace dualpipe
