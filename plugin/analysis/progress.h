// plugin/analysis/progress.h
//
// Runs the rows of a compute-only schedule as far as dependencies allow, every rank in the order of its row: what
// simulate() puts times on, and what validate() looks at where the ranks got stuck.
//
// F needs the F of the stage before, B and I need the B or I of the stage after, wherever these ran. Each action is
// visited once; the work is linear in the number of actions, since a rank is looked at again only when a result that it
// may wait for has come.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/analysis/rank_queue.h"
#include "plugin/analysis/stage_table.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe::analysis {

// The result that `op` consumes, as the op that computes it (kind F or B, where B stands for B or I).
inline std::optional<Op> producer_of(const Op& op, int stages) {
  if (op.kind == Kind::kForward && op.stage > 0) {
    return make_op(op.stage - 1, Kind::kForward, op.micro_batch);
  }
  const bool is_backward = op.kind == Kind::kBackward || op.kind == Kind::kBackwardInput;
  if (is_backward && op.stage + 1 < stages) {
    return make_op(op.stage + 1, Kind::kBackward, op.micro_batch);
  }
  return std::nullopt;
}

class Progress {
 public:
  // `schedule` must outlive this. Throws ScheduleError for an action that is no compute or out of range, and where the
  // number of rows is not the number of ranks.
  explicit Progress(const Schedule& schedule);

  // Calls visit(rank, action) for every action that can run, producers before consumers.
  template <class Visit>
  void run(Visit&& visit) {
    while (const std::optional<int> rank = queue_.pop()) {
      run_rank(*rank, visit);
    }
  }

  // The column of the action that the rank could not start; the length of its row where it ran to its end.
  int reached(int rank) const { return column_[rank]; }
  bool finished() const;
  // What a rank that did not finish waits for: the op that nobody has run.
  Op missing(int rank) const;

 private:
  static constexpr std::uint8_t kForwardDone = 1;
  static constexpr std::uint8_t kBackwardDone = 2;

  template <class Visit>
  void run_rank(int rank, Visit& visit) {
    const Row& row = schedule_.rows[rank];
    int& column = column_[rank];
    while (column < static_cast<int>(row.size()) && is_ready(row[column])) {
      const Action& action = row[column++];
      visit(rank, action);
      finish(action.op);
      if (action.paired) {
        finish(*action.paired);
      }
    }
  }

  bool is_ready(const Action& action) const {
    return is_ready(action.op) && (!action.paired || is_ready(*action.paired));
  }
  bool is_ready(const Op& op) const {
    switch (op.kind) {
      case Kind::kForward:
        return op.stage == 0 || (done_.at(op.stage - 1, op.micro_batch) & kForwardDone) != 0;
      case Kind::kBackward:
      case Kind::kBackwardInput:
        return op.stage + 1 == schedule_.placement.stages() ||
               (done_.at(op.stage + 1, op.micro_batch) & kBackwardDone) != 0;
      default:
        return true;
    }
  }
  void finish(const Op& op);

  const Schedule& schedule_;
  StageTable<std::uint8_t> done_;  // Bits kForwardDone and kBackwardDone.
  std::vector<int> column_;
  RankQueue queue_;
};

}  // namespace dualpipe::analysis
