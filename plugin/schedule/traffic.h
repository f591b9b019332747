// plugin/schedule/traffic.h
//
// The messages of a compute-only schedule: which ranks exchange them, and in which order each directed edge sends and
// consumes them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "plugin/schedule/cells.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct Message {
  Op recv;       // As its receiver posts it, e.g. 1RECV_F7 for the result of 0F7.
  int sent_at;   // Column of the sender's action that computes it.
  int taken_at;  // Column of the receiver's action that needs it.
};

// The stage that computes on the result of an F, B or I, and the stage whose result it computes on. They may lie beyond
// the ends of the pipeline.
inline int next_stage(const Op& op) { return op.kind == Kind::kForward ? op.stage + 1 : op.stage - 1; }
inline int previous_stage(const Op& op) { return op.kind == Kind::kForward ? op.stage - 1 : op.stage + 1; }

// How the result of an F, B or I is sent: 0SEND_F7 for 0F7.
Op send_after(const Op& compute);

// Keeps a reference to the schedule. Dense: 8 bytes per (stage, micro-batch).
class Traffic {
 public:
  // Throws ScheduleError for a cell that is no compute action of its rank, one that stands twice, a result that nobody
  // computes on, an action whose input nobody computes, and a backward ahead of its forward.
  explicit Traffic(const Schedule& schedule);

  // The column of an F that stands in the schedule, in the row of its rank.
  int forward_column(int stage, int micro_batch) const { return forward_[index(stage, micro_batch)] - 1; }

  // The other rank that needs the result of `op`, or that computes what `op` needs, where `op` runs on `rank`. Nothing
  // where that is the rank itself, the end of the pipeline, or a W.
  std::optional<int> receiver_of(const Op& op, int rank) const { return other_rank(op, rank, next_stage(op)); }
  std::optional<int> sender_to(const Op& op, int rank) const { return other_rank(op, rank, previous_stage(op)); }

  // The ranks that `rank` may send to or receive from, ascending.
  std::vector<int> peers_of(int rank) const;
  // The messages of a directed edge in the order of sending; of a pair, the F first.
  std::vector<Message> edge(int from, int to) const;

 private:
  using Columns = std::vector<int>;  // Column plus one, so that 0 is "stands nowhere".

  std::size_t index(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * schedule_.num_microbatches + micro_batch;
  }
  Message message(const Op& op, int sent_at) const;
  std::optional<int> other_rank(const Op& op, int rank, int stage) const {
    const Placement& placement = schedule_.placement;
    if (op.kind == Kind::kBackwardWeight || stage < 0 || stage >= placement.stages()) {
      return std::nullopt;
    }
    const int other = placement.rank_of(stage, op.micro_batch);
    return other == rank ? std::nullopt : std::optional<int>(other);
  }
  void require_own(const Op& op, const CellPlace& place) const;
  bool remember(const Op& op, int column, std::vector<bool>& weights);  // False where the action stands twice.
  void index_row(int rank, std::vector<bool>& weights);
  void require_neighbours(int rank) const;

  const Schedule& schedule_;
  Columns forward_;
  Columns backward_;
};

// The messages of one step over all directed edges: one per result that another rank computes on.
std::size_t count_messages(const Placement& placement, int num_microbatches);

// Calls visit(op) for the operation of an action, or for both of a pair.
template <typename Visit>
void for_each_op(const Action& action, Visit visit) {
  visit(action.op);
  if (action.paired) {
    visit(*action.paired);
  }
}

}  // namespace dualpipe
