#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "tests/analysis/slow_reference.h"

namespace dualpipe {
namespace {

using Rule = Violation::Rule;
using Places = std::map<Op, int>;  // First column of every operation on its own rank.

std::vector<Op> ops_of(const Action& action) {
  return action.paired ? std::vector<Op>{action.op, *action.paired} : std::vector<Op>{action.op};
}

bool is_before(const Places& places, const Op& early, const Op& late) {
  const auto a = places.find(early);
  const auto b = places.find(late);
  return a != places.end() && a->second < b->second;
}

Op with(const Op& op, Kind kind) { return make_op(op.stage, kind, op.micro_batch); }

bool is_backward(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardInput; }

// The stage whose result `op` consumes.
std::optional<int> source_of(const Op& op, const Placement& placement) {
  if (op.kind == Kind::kForward && op.stage > 0) {
    return op.stage - 1;
  }
  if (is_backward(op.kind) && op.stage + 1 < placement.stages()) {
    return op.stage + 1;
  }
  return std::nullopt;
}

bool breaks_order(const Places& places, const Op& op, const Placement& placement) {
  if (is_backward(op.kind) && !is_before(places, with(op, Kind::kForward), op)) {
    return true;
  }
  if (op.kind == Kind::kBackwardWeight && !is_before(places, with(op, Kind::kBackwardInput), op) &&
      !is_before(places, with(op, Kind::kBackward), op)) {
    return true;
  }
  const std::optional<int> source = source_of(op, placement);
  if (!source || placement.rank_of(*source, op.micro_batch) != placement.rank_of(op.stage, op.micro_batch)) {
    return false;
  }
  if (op.kind == Kind::kForward) {
    return !is_before(places, make_op(*source, Kind::kForward, op.micro_batch), op);
  }
  return !is_before(places, make_op(*source, Kind::kBackward, op.micro_batch), op) &&
         !is_before(places, make_op(*source, Kind::kBackwardInput, op.micro_batch), op);
}

// Runs ranks in turn, an action at a time, until none can go on; `can_start` says whether an action may, `run` does it.
template <class CanStart, class Run>
bool all_end(const std::vector<Row>& rows, CanStart can_start, Run run) {
  std::vector<std::size_t> column(rows.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      if (column[rank] < rows[rank].size() && can_start(static_cast<int>(rank), rows[rank][column[rank]])) {
        run(static_cast<int>(rank), rows[rank][column[rank]]);
        ++column[rank];
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    if (column[rank] != rows[rank].size()) {
      return false;
    }
  }
  return true;
}

bool is_result_there(const std::set<Op>& done, const Op& op, const Placement& placement) {
  const std::optional<int> source = source_of(op, placement);
  if (!source) {
    return true;
  }
  if (op.kind == Kind::kForward) {
    return done.contains(make_op(*source, Kind::kForward, op.micro_batch));
  }
  return done.contains(make_op(*source, Kind::kBackward, op.micro_batch)) ||
         done.contains(make_op(*source, Kind::kBackwardInput, op.micro_batch));
}

bool can_finish(const Schedule& schedule) {
  std::set<Op> done;
  return all_end(
      schedule.rows,
      [&](int, const Action& action) {
        const std::vector<Op> ops = ops_of(action);
        return std::all_of(ops.begin(), ops.end(),
                           [&](const Op& op) { return is_result_there(done, op, schedule.placement); });
      },
      [&](int, const Action& action) {
        for (const Op& op : ops_of(action)) {
          done.insert(op);
        }
      });
}

// A message by its sender, its receiver and the receiving operation's kind, stage and micro-batch.
using Wire = std::tuple<int, int, Kind, int, int>;

Wire wire_into(const Placement& placement, Kind kind, int stage, int micro_batch) {
  const int source = kind == Kind::kForward ? stage - 1 : stage + 1;
  return {placement.rank_of(source, micro_batch), placement.rank_of(stage, micro_batch), kind, stage, micro_batch};
}

// The message that a SEND, WAIT_SEND or RECV is about, or that a compute consumes from another rank.
std::optional<Wire> wire_of(const Placement& placement, const Op& op) {
  switch (op.kind) {
    case Kind::kSendForward:
    case Kind::kWaitSendForward:
      return wire_into(placement, Kind::kForward, op.stage + 1, op.micro_batch);
    case Kind::kSendBackward:
    case Kind::kWaitSendBackward:
      return wire_into(placement, Kind::kBackward, op.stage - 1, op.micro_batch);
    case Kind::kRecvForward:
      return wire_into(placement, Kind::kForward, op.stage, op.micro_batch);
    case Kind::kRecvBackward:
      return wire_into(placement, Kind::kBackward, op.stage, op.micro_batch);
    default:
      break;
  }
  const std::optional<int> source = is_compute(op.kind) ? source_of(op, placement) : std::nullopt;
  if (!source || placement.rank_of(*source, op.micro_batch) == placement.rank_of(op.stage, op.micro_batch)) {
    return std::nullopt;
  }
  return wire_into(placement, op.kind == Kind::kForward ? Kind::kForward : Kind::kBackward, op.stage, op.micro_batch);
}

bool ends_tagged(const Program& program) {
  std::set<Wire> sent;
  std::set<Wire> posted;
  const auto waits = [&](const Op& op) {
    const std::optional<Wire> wire = wire_of(program.placement, op);
    const bool needs = wire && (is_compute(op.kind) || is_wait_send(op.kind));
    return needs && !(sent.contains(*wire) && posted.contains(*wire));
  };
  return all_end(
      program.rows,
      [&](int, const Action& action) {
        const std::vector<Op> ops = ops_of(action);
        return std::none_of(ops.begin(), ops.end(), waits);
      },
      [&](int, const Action& action) {
        if (is_send(action.op.kind)) {
          sent.insert(*wire_of(program.placement, action.op));
        } else if (is_recv(action.op.kind)) {
          posted.insert(*wire_of(program.placement, action.op));
        }
      });
}

// One directed edge as a queue at each end; messages move from the fronts only, each into a free slot.
struct Channel {
  std::deque<Wire> sent;
  std::deque<Wire> posted;
  std::set<Wire> in_slots;
  std::set<Wire> moved;

  void move(int slots) {
    while (!sent.empty() && !posted.empty() && sent.front() == posted.front() &&
           static_cast<int>(in_slots.size()) < slots) {
      in_slots.insert(sent.front());
      moved.insert(sent.front());
      sent.pop_front();
      posted.pop_front();
    }
  }
};

bool ends_in_order(const Program& program) {
  std::map<std::pair<int, int>, Channel> channels;
  std::set<Wire> taken;
  const auto channel_of = [&](const Wire& wire) -> Channel& {
    return channels[{std::get<0>(wire), std::get<1>(wire)}];
  };
  const auto take = [&](const Op& op) {
    const std::optional<Wire> wire = is_compute(op.kind) ? wire_of(program.placement, op) : std::nullopt;
    if (wire && channel_of(*wire).in_slots.erase(*wire) == 1) {
      taken.insert(*wire);
      channel_of(*wire).move(program.slots);
    }
  };
  const auto waits = [&](const Op& op) {
    const std::optional<Wire> wire = wire_of(program.placement, op);
    return wire && ((is_compute(op.kind) && !taken.contains(*wire)) ||
                    (is_wait_send(op.kind) && !channel_of(*wire).moved.contains(*wire)));
  };
  return all_end(
      program.rows,
      [&](int, const Action& action) {
        const std::vector<Op> ops = ops_of(action);
        for (int round = 0; round < 2; ++round) {
          std::for_each(ops.begin(), ops.end(), take);
        }
        return std::none_of(ops.begin(), ops.end(), waits);
      },
      [&](int, const Action& action) {
        const std::optional<Wire> wire = wire_of(program.placement, action.op);
        if (is_send(action.op.kind)) {
          channel_of(*wire).sent.push_back(*wire);
          channel_of(*wire).move(program.slots);
        } else if (is_recv(action.op.kind)) {
          channel_of(*wire).posted.push_back(*wire);
          channel_of(*wire).move(program.slots);
        }
      });
}

std::map<std::pair<int, int>, std::vector<Wire>> sequences(const Program& program, bool (*wanted)(Kind)) {
  std::map<std::pair<int, int>, std::vector<Wire>> result;
  for (const Row& row : program.rows) {
    for (const Action& action : row) {
      if (wanted(action.op.kind)) {
        const Wire wire = *wire_of(program.placement, action.op);
        result[{std::get<0>(wire), std::get<1>(wire)}].push_back(wire);
      }
    }
  }
  return result;
}

std::vector<Op> sorted_ops(const Row& row) {
  std::vector<Op> ops;
  for (const Action& action : row) {
    const std::vector<Op> more = ops_of(action);
    ops.insert(ops.end(), more.begin(), more.end());
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

bool breaks_order_of_row(const Row& row, const Placement& placement) {
  Places places;
  for (std::size_t column = 0; column < row.size(); ++column) {
    for (const Op& op : ops_of(row[column])) {
      places.emplace(op, static_cast<int>(column));
    }
  }
  for (const auto& [op, column] : places) {
    const bool after_backward =
        is_before(places, with(op, Kind::kBackward), op) || is_before(places, with(op, Kind::kBackwardInput), op);
    bool breaks = is_compute(op.kind) && breaks_order(places, op, placement);
    breaks |= (op.kind == Kind::kSendForward || op.kind == Kind::kRecvBackward) &&
              !is_before(places, with(op, Kind::kForward), op);
    breaks |= op.kind == Kind::kSendBackward && !after_backward;
    breaks |= op.kind == Kind::kWaitSendForward && !is_before(places, with(op, Kind::kSendForward), op);
    breaks |= op.kind == Kind::kWaitSendBackward && !is_before(places, with(op, Kind::kSendBackward), op);
    const auto reduced = places.find(make_op(op.stage, Kind::kReduceGrad));
    breaks |= is_compute(op.kind) && op.kind != Kind::kForward && op.kind != Kind::kBackwardInput &&
              reduced != places.end() && reduced->second < column;
    if (breaks) {
      return true;
    }
  }
  return false;
}

std::vector<Op> reductions(const Row& row) {
  std::vector<Op> ops;
  for (const Action& action : row) {
    if (action.op.kind == Kind::kReduceGrad) {
      ops.push_back(action.op);
    }
  }
  return ops;
}

}  // namespace

Rules rules_of(const std::vector<Violation>& violations) {
  Rules rules;
  for (const Violation& violation : violations) {
    rules.insert(violation.rule);
  }
  return rules;
}

Rules slow_validate(const Schedule& schedule) {
  Rules rules;
  Places places;
  const Placement& placement = schedule.placement;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (std::size_t column = 0; column < schedule.rows[rank].size(); ++column) {
      const Action& action = schedule.rows[rank][column];
      if (action.paired && with(*action.paired, Kind::kForward) == action.op) {
        rules.insert(Rule::kOrder);
        continue;
      }
      for (const Op& op : ops_of(action)) {
        if (op.stage >= placement.stages() || op.micro_batch < 0 || op.micro_batch >= schedule.num_microbatches) {
          rules.insert(Rule::kOutOfRange);
        } else if (placement.rank_of(op.stage, op.micro_batch) != static_cast<int>(rank)) {
          rules.insert(Rule::kWrongRank);
        } else if (!places.emplace(op, static_cast<int>(column)).second) {
          rules.insert(Rule::kRepeated);
        }
      }
    }
  }
  for (const auto& [op, column] : places) {
    if (breaks_order(places, op, placement)) {
      rules.insert(Rule::kOrder);
    }
  }
  for (int stage = 0; stage < placement.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.num_microbatches; ++micro_batch) {
      const auto has = [&](Kind kind) { return places.contains(make_op(stage, kind, micro_batch)); };
      const bool has_either = has(Kind::kBackwardInput) || has(Kind::kBackwardWeight);
      const bool has_both = has(Kind::kBackwardInput) && has(Kind::kBackwardWeight);
      if (has(Kind::kBackward) && has_either) {
        rules.insert(Rule::kRepeated);
      }
      if (!has(Kind::kForward) || (!has(Kind::kBackward) && !has_both)) {
        rules.insert(Rule::kMissing);
      }
    }
  }
  if (rules.empty() && !can_finish(schedule)) {
    rules.insert(Rule::kDeadlock);
  }
  return rules;
}

Rules slow_validate(const Program& program, const Program& sound) {
  Rules rules;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    if (sorted_ops(program.rows[rank]) != sorted_ops(sound.rows[rank]) ||
        breaks_order_of_row(program.rows[rank], program.placement)) {
      return {Rule::kMissing};
    }
    const std::optional<int> mirror = program.placement.mirror_of(static_cast<int>(rank));
    if (mirror && reductions(program.rows[rank]) != reductions(program.rows[*mirror])) {
      rules.insert(Rule::kReductionOrder);
    }
  }
  if (!rules.empty()) {
    return rules;
  }
  const bool in_order = sequences(program, is_send) == sequences(program, is_recv);
  if (!in_order) {
    rules.insert(Rule::kEdgeOrder);
  }
  if (!ends_tagged(program)) {
    rules.insert(Rule::kDeadlock);
  } else if (in_order && !ends_in_order(program)) {
    rules.insert(Rule::kSlots);
  }
  return rules;
}

}  // namespace dualpipe
