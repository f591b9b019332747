#include "plugin/analysis/progress.h"

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe::analysis {
namespace {

void check_op(const Schedule& schedule, const StageTable<std::uint8_t>& table, const Op& op) {
  if (!is_compute(op.kind)) {
    throw ScheduleError(schedule.name, "only F, B, I and W can be simulated, got " + to_string(op));
  }
  if (!table.contains(op)) {
    throw ScheduleError(schedule.name, to_string(op) + " does not exist: there are " +
                                           std::to_string(schedule.placement.stages()) + " stages and " +
                                           std::to_string(schedule.num_microbatches) + " micro-batches");
  }
}

}  // namespace

Progress::Progress(const Schedule& schedule)
    : schedule_(schedule),
      done_(schedule.placement.stages(), schedule.num_microbatches),
      column_(schedule.rows.size(), 0),
      queue_(static_cast<int>(schedule.rows.size())) {
  if (static_cast<int>(schedule.rows.size()) != schedule.placement.ranks()) {
    throw ScheduleError(schedule.name, "rows must be one per rank = " + std::to_string(schedule.placement.ranks()) +
                                           ", got " + std::to_string(schedule.rows.size()));
  }
  for (const Row& row : schedule.rows) {
    for (const Action& action : row) {
      check_op(schedule, done_, action.op);
      if (action.paired) {
        check_op(schedule, done_, *action.paired);
      }
    }
  }
}

void Progress::finish(const Op& op) {
  const Placement& placement = schedule_.placement;
  if (op.kind == Kind::kForward) {
    done_.at(op.stage, op.micro_batch) |= kForwardDone;
    if (op.stage + 1 < placement.stages()) {
      queue_.push(placement.rank_of(op.stage + 1, op.micro_batch));
    }
  } else if (op.kind != Kind::kBackwardWeight) {
    done_.at(op.stage, op.micro_batch) |= kBackwardDone;
    if (op.stage > 0) {
      queue_.push(placement.rank_of(op.stage - 1, op.micro_batch));
    }
  }
}

bool Progress::finished() const {
  for (std::size_t rank = 0; rank < column_.size(); ++rank) {
    if (column_[rank] != static_cast<int>(schedule_.rows[rank].size())) {
      return false;
    }
  }
  return true;
}

Op Progress::missing(int rank) const {
  const Action& action = schedule_.rows[rank].at(column_[rank]);
  const Op& waiting = is_ready(action.op) ? action.paired.value() : action.op;
  return producer_of(waiting, schedule_.placement.stages()).value();
}

}  // namespace dualpipe::analysis
