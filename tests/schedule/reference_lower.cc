#include "tests/schedule/reference_lower.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace dualpipe {
namespace {

std::vector<Op> parts(const Action& action) {
  return action.paired ? std::vector<Op>{action.op, *action.paired} : std::vector<Op>{action.op};
}

bool is_backward(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardInput; }

// One message, told from both ends.
struct Letter {
  int from;
  int to;
  int sent_in;    // Column of the sender.
  int needed_in;  // Column of the receiver.
  Op send;
  Op recv;
};

// The column of the F, or of the B or I, of (stage, micro-batch) in the row.
int find_column(const Row& row, bool forward, int stage, int micro_batch) {
  for (std::size_t column = 0; column < row.size(); ++column) {
    for (const Op& op : parts(row[column])) {
      const bool right_kind = forward ? op.kind == Kind::kForward : is_backward(op.kind);
      if (right_kind && op.stage == stage && op.micro_batch == micro_batch) {
        return static_cast<int>(column);
      }
    }
  }
  return -1;
}

// All messages, each rank's in the order of sending.
std::vector<Letter> letters(const Schedule& schedule) {
  std::vector<Letter> all;
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    for (std::size_t column = 0; column < schedule.rows[rank].size(); ++column) {
      for (const Op& op : parts(schedule.rows[rank][column])) {
        const bool forward = op.kind == Kind::kForward;
        const int stage = forward ? op.stage + 1 : op.stage - 1;
        if (op.kind == Kind::kBackwardWeight || stage < 0 || stage == schedule.placement.stages()) {
          continue;
        }
        const int to = schedule.placement.rank_of(stage, op.micro_batch);
        if (to != rank) {
          all.push_back({rank, to, static_cast<int>(column),
                         find_column(schedule.rows[to], forward, stage, op.micro_batch),
                         make_op(op.stage, forward ? Kind::kSendForward : Kind::kSendBackward, op.micro_batch),
                         make_op(stage, forward ? Kind::kRecvForward : Kind::kRecvBackward, op.micro_batch)});
        }
      }
    }
  }
  return all;
}

std::vector<Letter> edge(const std::vector<Letter>& all, int from, int to) {
  std::vector<Letter> some;
  std::copy_if(all.begin(), all.end(), std::back_inserter(some),
               [&](const Letter& letter) { return letter.from == from && letter.to == to; });
  return some;
}

Row receives_after(const Schedule& schedule, const std::vector<Letter>& all, int rank, int column, int slots,
                   std::set<Op>& posted) {
  Row row;
  for (int peer = 0; peer < schedule.placement.ranks(); ++peer) {
    for (const Letter& letter : edge(all, peer, rank)) {
      if (posted.count(letter.recv) != 0) {
        continue;
      }
      int held = 0;
      for (const Letter& other : edge(all, peer, rank)) {
        held += posted.count(other.recv) != 0 && other.needed_in > column;
      }
      const bool shapes = letter.recv.kind == Kind::kRecvForward ||
                          find_column(schedule.rows[rank], true, letter.recv.stage, letter.recv.micro_batch) <= column;
      if (held >= slots || !shapes) {
        break;
      }
      posted.insert(letter.recv);
      row.push_back(single(letter.recv));
    }
  }
  return row;
}

// What the action cannot do without, and what was sent before that.
Row receives_before(const Schedule& schedule, const std::vector<Letter>& all, int rank, int column,
                    std::set<Op>& posted) {
  Row row;
  for (int peer = 0; peer < schedule.placement.ranks(); ++peer) {
    const std::vector<Letter> letters = edge(all, peer, rank);
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const bool due = std::any_of(letters.begin() + i, letters.end(),
                                   [&](const Letter& later) { return later.needed_in <= column; });
      if (due && posted.insert(letters[i].recv).second) {
        row.push_back(single(letters[i].recv));
      }
    }
  }
  return row;
}

// A message that the peer sent in or after the action that consumed ours has been consumed here.
bool is_proven(const std::vector<Letter>& all, const Letter& ours, int column) {
  const std::vector<Letter> answers = edge(all, ours.to, ours.from);
  return std::any_of(answers.begin(), answers.end(), [&](const Letter& answer) {
    return answer.sent_in >= ours.needed_in && answer.needed_in <= column;
  });
}

Op wait_of(const Op& send) {
  return make_op(send.stage, send.kind == Kind::kSendForward ? Kind::kWaitSendForward : Kind::kWaitSendBackward,
                 send.micro_batch);
}

bool is_last_gradient(const Row& row, int column, const Op& op) {
  const auto ends = [&](const Op& other) {
    return other.stage == op.stage && (other.kind == Kind::kBackward || other.kind == Kind::kBackwardWeight);
  };
  if (!ends(op)) {
    return false;
  }
  for (std::size_t later = column + 1; later < row.size(); ++later) {
    for (const Op& other : parts(row[later])) {
      if (ends(other)) {
        return false;
      }
    }
  }
  return true;
}

void append(Row& row, const Row& more) { row.insert(row.end(), more.begin(), more.end()); }

Row lower_row(const Schedule& schedule, const std::vector<Letter>& all, int rank, int slots) {
  const Row& row = schedule.rows[rank];
  std::set<Op> posted;
  std::set<Op> waited;
  Row result = receives_after(schedule, all, rank, -1, slots, posted);
  for (int column = 0; column < static_cast<int>(row.size()); ++column) {
    append(result, receives_before(schedule, all, rank, column, posted));
    result.push_back(row[column]);
    for (const Letter& letter : all) {
      if (letter.from == rank && letter.sent_in == column) {
        result.push_back(single(letter.send));
      }
    }
    append(result, receives_after(schedule, all, rank, column, slots, posted));
    for (const Letter& letter : all) {
      if (letter.from == rank && letter.sent_in <= column && is_proven(all, letter, column) &&
          waited.insert(letter.send).second) {
        result.push_back(single(wait_of(letter.send)));
      }
    }
    for (const Op& op : parts(row[column])) {
      if (is_last_gradient(row, column, op)) {
        result.push_back(single(make_op(op.stage, Kind::kReduceGrad)));
      }
    }
  }
  for (const Letter& letter : all) {
    if (letter.from == rank && waited.insert(letter.send).second) {
      result.push_back(single(wait_of(letter.send)));
    }
  }
  return result;
}

// Ranks run their rows; a message moves from the sender's queue into one of k slots, strictly in order; an operation
// takes its message out of a slot when it is its turn, for a pair the F first.
class ChannelModel {
 public:
  ChannelModel(const Schedule& schedule, const std::vector<Letter>& letters, std::size_t slots)
      : placement_(schedule.placement), letters_(letters), slots_(slots), todo_(placement_.ranks()) {
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      for (const Action& action : schedule.rows[rank]) {
        const std::vector<Op> ops = parts(action);
        todo_[rank].insert(todo_[rank].end(), ops.begin(), ops.end());
      }
    }
  }

  bool runs_to_the_end() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < placement_.ranks(); ++rank) {
        while (!todo_[rank].empty() && take_input(rank, todo_[rank].front())) {
          finish(rank, todo_[rank].front());
          todo_[rank].pop_front();
          moved = true;
        }
      }
    }
    return std::all_of(todo_.begin(), todo_.end(), [](const std::deque<Op>& ops) { return ops.empty(); });
  }

 private:
  // The result that the next stage computes on, whether the backward is whole or split.
  static Op result(const Op& op, int stage) {
    return make_op(stage, op.kind == Kind::kForward ? Kind::kForward : Kind::kBackward, op.micro_batch);
  }

  bool take_input(int rank, const Op& op) {
    const int stage = op.kind == Kind::kForward ? op.stage - 1 : op.stage + 1;
    if (op.kind == Kind::kBackwardWeight || stage < 0 || stage == placement_.stages()) {
      return true;
    }
    const int from = placement_.rank_of(stage, op.micro_batch);
    if (from == rank) {
      return done_.count(result(op, stage)) != 0;
    }
    const Kind kind = op.kind == Kind::kForward ? Kind::kRecvForward : Kind::kRecvBackward;
    std::deque<Op>& channel = channels_[{from, rank}];  // Its first k messages are in the slots.
    const auto end = channel.begin() + std::min(slots_, channel.size());
    const auto message = std::find(channel.begin(), end, make_op(op.stage, kind, op.micro_batch));
    if (message == end) {
      return false;
    }
    channel.erase(message);
    return true;
  }

  void finish(int rank, const Op& op) {
    if (op.kind == Kind::kBackwardWeight) {
      return;
    }
    done_.insert(result(op, op.stage));
    const Kind kind = op.kind == Kind::kForward ? Kind::kSendForward : Kind::kSendBackward;
    for (const Letter& letter : letters_) {
      if (letter.from == rank && letter.send == make_op(op.stage, kind, op.micro_batch)) {
        channels_[{rank, letter.to}].push_back(letter.recv);
      }
    }
  }

  const Placement& placement_;
  const std::vector<Letter>& letters_;
  const std::size_t slots_;
  std::vector<std::deque<Op>> todo_;
  std::set<Op> done_;
  std::map<std::pair<int, int>, std::deque<Op>> channels_;
};

}  // namespace

std::vector<Row> reference_lower(const Schedule& schedule, int slots) {
  const std::vector<Letter> all = letters(schedule);
  std::vector<Row> rows;
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    rows.push_back(lower_row(schedule, all, rank, slots));
  }
  return rows;
}

int reference_least_slots(const Schedule& schedule) {
  const std::vector<Letter> all = letters(schedule);
  int slots = 1;
  while (!ChannelModel(schedule, all, slots).runs_to_the_end()) {
    ++slots;
  }
  return slots;
}

}  // namespace dualpipe
