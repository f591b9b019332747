#include "plugin/analysis/simulate.h"

#include <algorithm>

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

class Clock {
 public:
  Clock(const Schedule& schedule, const CostModel& cost)
      : placement_(schedule.placement),
        cost_(cost),
        results_(schedule.placement.stages(), schedule.num_microbatches),
        free_(schedule.rows.size(), 0.0) {}

  Span run(int rank, const Action& action) {
    double start = std::max(free_[rank], arrival(rank, action.op));
    if (action.paired) {
      start = std::max(start, arrival(rank, *action.paired));
    }
    const double end = start + cost_.duration(action);
    free_[rank] = end;
    record(action.op, end);
    if (action.paired) {
      record(*action.paired, end);
    }
    return {action, start, end};
  }

 private:
  double arrival(int rank, const Op& op) const {
    const std::optional<Op> producer = producer_of(op, placement_.stages());
    if (!producer) {
      return 0;
    }
    const Results& results = results_.at(producer->stage, producer->micro_batch);
    const double ready = producer->kind == Kind::kForward ? results.forward : results.backward;
    return placement_.rank_of(producer->stage, producer->micro_batch) == rank ? ready : ready + cost_.latency;
  }

  void record(const Op& op, double end) {
    if (op.kind == Kind::kForward) {
      results_.at(op.stage, op.micro_batch).forward = end;
    } else if (op.kind != Kind::kBackwardWeight) {
      results_.at(op.stage, op.micro_batch).backward = end;
    }
  }

  const Placement& placement_;
  const CostModel& cost_;
  StageTable<Results> results_;
  std::vector<double> free_;
};

void check_cost(const Schedule& schedule, const CostModel& cost) {
  const int stages = schedule.placement.stages();
  if (!cost.per_stage.empty() && static_cast<int>(cost.per_stage.size()) != stages) {
    throw ScheduleError("cost", "per_stage must have one entry per stage = " + std::to_string(stages) + ", got " +
                                    std::to_string(cost.per_stage.size()));
  }
}

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

Timeline simulate(const Schedule& schedule, const CostModel& cost) {
  check_cost(schedule, cost);
  Progress progress(schedule);
  Clock clock(schedule, cost);
  Timeline timeline;
  timeline.ranks.resize(schedule.rows.size());
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    timeline.ranks[rank].reserve(schedule.rows[rank].size());
  }
  progress.run([&](int rank, const Action& action) { timeline.ranks[rank].push_back(clock.run(rank, action)); });
  if (!progress.finished()) {
    refuse_deadlock(schedule, progress);
  }
  timeline.peak_activations = peak_activations(schedule);
  return timeline;
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
