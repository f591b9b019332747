#include "plugin/schedule/traffic.h"

#include <set>
#include <string>

#include "plugin/schedule/cells.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

bool is_backward(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardInput; }

Op same_kind(const Op& op, int stage) {
  return make_op(stage, op.kind == Kind::kForward ? Kind::kForward : Kind::kBackward, op.micro_batch);
}

void require_shape(const Schedule& schedule) {
  if (static_cast<int>(schedule.rows.size()) != schedule.placement.ranks()) {
    throw ScheduleError(schedule.name, "a schedule must have a row for each of its " +
                                           std::to_string(schedule.placement.ranks()) + " ranks, got " +
                                           std::to_string(schedule.rows.size()));
  }
  if (schedule.num_microbatches < 1) {
    throw ScheduleError(schedule.name,
                        "num_microbatches must be at least 1, got " + std::to_string(schedule.num_microbatches));
  }
}

}  // namespace

Op send_after(const Op& compute) {
  return make_op(compute.stage, compute.kind == Kind::kForward ? Kind::kSendForward : Kind::kSendBackward,
                 compute.micro_batch);
}

std::size_t count_messages(const Placement& placement, int num_microbatches) {
  std::size_t boundaries = 0;
  for (int micro_batch = 0; micro_batch < num_microbatches; ++micro_batch) {
    for (int stage = 0; stage + 1 < placement.stages(); ++stage) {
      boundaries += placement.rank_of(stage, micro_batch) != placement.rank_of(stage + 1, micro_batch) ? 1 : 0;
    }
  }
  return 2 * boundaries;  // An activation and its gradient.
}

Traffic::Traffic(const Schedule& schedule) : schedule_(schedule) {
  require_shape(schedule);
  const std::size_t cells = index(schedule.placement.stages(), 0);
  forward_.resize(cells);
  backward_.resize(cells);
  std::vector<bool> weights(cells, false);
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    index_row(rank, weights);
  }
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    require_neighbours(rank);
  }
}

void Traffic::require_own(const Op& op, const CellPlace& place) const {
  const Placement& placement = schedule_.placement;
  if (!is_compute(op.kind)) {
    refuse_cell(to_string(op), place, "a schedule must hold compute actions only");
  }
  if (op.stage >= placement.stages() || op.micro_batch < 0 || op.micro_batch >= schedule_.num_microbatches) {
    refuse_cell(to_string(op), place,
                "stages must be below " + std::to_string(placement.stages()) + " and micro-batches below " +
                    std::to_string(schedule_.num_microbatches));
  }
  const int rank = placement.rank_of(op.stage, op.micro_batch);
  if (rank != place.rank) {
    refuse_cell(to_string(op), place, "the action of rank " + std::to_string(rank) + " must stand there");
  }
}

bool Traffic::remember(const Op& op, int column, std::vector<bool>& weights) {
  const std::size_t cell = index(op.stage, op.micro_batch);
  if (op.kind == Kind::kBackwardWeight) {
    const bool is_new = !weights[cell];
    weights[cell] = true;
    return is_new;
  }
  int& column_plus_one = op.kind == Kind::kForward ? forward_[cell] : backward_[cell];
  const bool is_new = column_plus_one == 0;
  column_plus_one = column + 1;
  return is_new;
}

void Traffic::index_row(int rank, std::vector<bool>& weights) {
  const Row& row = schedule_.rows[rank];
  for (int column = 0; column < static_cast<int>(row.size()); ++column) {
    const CellPlace place{schedule_.name, rank, column};
    for_each_op(row[column], [&](const Op& op) {
      require_own(op, place);
      if (!remember(op, column, weights)) {
        refuse_cell(to_string(op), place, "each action must stand once");
      }
    });
  }
}

void Traffic::require_neighbours(int rank) const {
  const Row& row = schedule_.rows[rank];
  for (int column = 0; column < static_cast<int>(row.size()); ++column) {
    for_each_op(row[column], [&](const Op& op) {
      if (op.kind == Kind::kBackwardWeight) {
        return;
      }
      const CellPlace place{schedule_.name, rank, column};
      const Columns& columns = op.kind == Kind::kForward ? forward_ : backward_;
      for (const int stage : {previous_stage(op), next_stage(op)}) {
        if (stage >= 0 && stage < schedule_.placement.stages() && columns[index(stage, op.micro_batch)] == 0) {
          refuse_cell(to_string(op), place, to_string(same_kind(op, stage)) + " must stand in the schedule as well");
        }
      }
      const int forward = forward_[index(op.stage, op.micro_batch)];
      if (is_backward(op.kind) && (forward == 0 || forward > column)) {
        refuse_cell(to_string(op), place, "a backward must stand behind its forward");
      }
    });
  }
}

std::vector<int> Traffic::peers_of(int rank) const {
  const Placement& placement = schedule_.placement;
  std::set<int> peers;
  for (const int stage : placement.stages_of(rank)) {
    for (const int micro_batch : {0, schedule_.num_microbatches - 1}) {  // One of each direction.
      for (const int neighbour : {stage - 1, stage + 1}) {
        if (placement.rank_of(stage, micro_batch) == rank && neighbour >= 0 && neighbour < placement.stages()) {
          peers.insert(placement.rank_of(neighbour, micro_batch));
        }
      }
    }
  }
  peers.erase(rank);
  return {peers.begin(), peers.end()};
}

Message Traffic::message(const Op& op, int sent_at) const {
  const bool forward = op.kind == Kind::kForward;
  const int stage = next_stage(op);
  const int taken_at = (forward ? forward_ : backward_)[index(stage, op.micro_batch)] - 1;
  return {make_op(stage, forward ? Kind::kRecvForward : Kind::kRecvBackward, op.micro_batch), sent_at, taken_at};
}

std::vector<Message> Traffic::edge(int from, int to) const {
  std::vector<Message> messages;
  const Row& row = schedule_.rows[from];
  messages.reserve(row.size());
  for (int column = 0; column < static_cast<int>(row.size()); ++column) {
    for_each_op(row[column], [&](const Op& op) {
      if (receiver_of(op, from) == to) {
        messages.push_back(message(op, column));
      }
    });
  }
  return messages;
}

}  // namespace dualpipe
