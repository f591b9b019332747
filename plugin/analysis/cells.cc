#include "plugin/analysis/cells.h"

#include <algorithm>
#include <string>

#include "plugin/analysis/progress.h"
#include "plugin/schedule/text.h"

namespace dualpipe::analysis {
namespace {

using Rule = Violation::Rule;

Op with(Op op, Kind kind) { return Op{op.micro_batch, op.stage, kind}; }

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Checker {
 public:
  Checker(int rank, const CellRules& rules, SeenCells& seen, Findings& findings)
      : rank_(rank), rules_(rules), seen_(seen), findings_(findings) {}

  void check_action(int column, const Action& action) {
    column_ = column;
    if (!action.is_overlap()) {
      check_op(action.op);
      return;
    }
    const Op& backward = *action.paired;
    if (action.op.kind != Kind::kForward || backward.kind != Kind::kBackward) {
      add(Rule::kOutOfRange, "an overlapped pair is an F and a B, got " + to_string(action));
    } else if (action.op.stage == backward.stage && action.op.micro_batch == backward.micro_batch) {
      add(Rule::kOrder, to_string(backward) + " is overlapped with the F that it needs");
    } else {
      check_op(action.op);
      check_op(backward);
    }
  }

 private:
  void add(Rule rule, std::string message) { findings_.add(rule, rank_, column_, std::move(message)); }

  bool has(const Op& op, Kind kind) const { return (seen_.kinds.at(op.stage, op.micro_batch) & kind_bit(kind)) != 0; }

  void check_op(const Op& op) {
    if (!is_compute(op.kind) && !rules_.lowered) {
      add(Rule::kOutOfRange, to_string(op) + " is no compute action: communication is added by lowering");
    } else if (!has_micro_batch(op.kind)) {
      check_stage_op(op);
    } else if (is_in_range(op) && is_on_its_rank(op) && is_due(op) && is_first(op)) {
      check_order(op);
      seen_.kinds.at(op.stage, op.micro_batch) |= kind_bit(op.kind);
    }
  }

  bool is_stage_in_range(const Op& op) {
    const bool holds = op.stage < rules_.placement.stages();
    if (!holds) {
      add(Rule::kOutOfRange, to_string(op) + ": stages are 0.." + std::to_string(rules_.placement.stages() - 1));
    }
    return holds;
  }

  bool is_in_range(const Op& op) {
    if (!is_stage_in_range(op)) {
      return false;
    }
    const bool holds = seen_.kinds.contains(op);
    if (!holds) {
      add(Rule::kOutOfRange, to_string(op) + ": micro-batches are 0.." + std::to_string(rules_.num_microbatches - 1));
    }
    return holds;
  }

  bool is_on_its_rank(const Op& op) {
    const int owner = rules_.placement.rank_of(op.stage, op.micro_batch);
    if (owner != rank_) {
      add(Rule::kWrongRank, to_string(op) + " belongs to rank " + std::to_string(owner));
    }
    return owner == rank_;
  }

  bool is_due(const Op& op) {
    const bool holds = is_compute(op.kind) || rules_.messages.moved_by(op).has_value();
    if (!holds) {
      add(Rule::kOutOfRange, to_string(op) + ": no message is due there");
    }
    return holds;
  }

  bool is_first(const Op& op) {
    if (has(op, op.kind)) {
      add(Rule::kRepeated, to_string(op) + " stands more than once");
      return false;
    }
    const bool is_part = op.kind == Kind::kBackwardInput || op.kind == Kind::kBackwardWeight;
    if (is_part && has(op, Kind::kBackward)) {
      add(Rule::kRepeated,
          to_string(op) + " is part of " + to_string(with(op, Kind::kBackward)) + ", which stands before");
      return false;
    }
    if (op.kind == Kind::kBackward && (has(op, Kind::kBackwardInput) || has(op, Kind::kBackwardWeight))) {
      add(Rule::kRepeated, to_string(op) + " repeats the I or W that stands before");
      return false;
    }
    return true;
  }

  // What must stand earlier on the same rank.
  void check_order(const Op& op) {
    require_producer(op);
    switch (op.kind) {
      case Kind::kBackward:
      case Kind::kBackwardInput:
      case Kind::kSendForward:
      case Kind::kRecvBackward:
        require_before(op, Kind::kForward, Kind::kForward);
        break;
      case Kind::kBackwardWeight:
        require_before(op, Kind::kBackwardInput, Kind::kBackwardInput);
        break;
      case Kind::kSendBackward:
        require_before(op, Kind::kBackward, Kind::kBackwardInput);
        break;
      case Kind::kWaitSendForward:
        require_before(op, Kind::kSendForward, Kind::kSendForward);
        break;
      case Kind::kWaitSendBackward:
        require_before(op, Kind::kSendBackward, Kind::kSendBackward);
        break;
      default:
        break;
    }
    const bool is_final = op.kind == Kind::kBackward || op.kind == Kind::kBackwardWeight;
    if (is_final && contains(seen_.reduced_on[op.stage], rank_)) {
      add(Rule::kOrder, to_string(op) + " stands after " + to_string(make_op(op.stage, Kind::kReduceGrad)));
    }
  }

  void require_before(const Op& op, Kind kind, Kind alternative) {
    if (!has(op, kind) && !has(op, alternative)) {
      add(Rule::kOrder, to_string(op) + " needs " + to_string(with(op, kind)) + " before it");
    }
  }

  // A result that is handed over inside the rank.
  void require_producer(const Op& op) {
    const std::optional<Op> producer = producer_of(op, rules_.placement.stages());
    if (!producer || rules_.placement.rank_of(producer->stage, producer->micro_batch) != rank_) {
      return;
    }
    const Kind alternative = producer->kind == Kind::kBackward ? Kind::kBackwardInput : producer->kind;
    if (!has(*producer, producer->kind) && !has(*producer, alternative)) {
      add(Rule::kOrder, to_string(op) + " needs " + to_string(*producer) + " before it");
    }
  }

  // REDUCE_GRAD and the like, which belong to a stage alone.
  void check_stage_op(const Op& op) {
    if (!is_stage_in_range(op)) {
      return;
    }
    if (!contains(rules_.placement.ranks_of(op.stage), rank_)) {
      add(Rule::kWrongRank, to_string(op) + ": rank " + std::to_string(rank_) + " does not hold the stage");
    } else if (op.kind == Kind::kReduceGrad && contains(seen_.reduced_on[op.stage], rank_)) {
      add(Rule::kRepeated, to_string(op) + " stands more than once");
    } else if (op.kind == Kind::kReduceGrad) {
      seen_.reduced_on[op.stage].push_back(rank_);
    }
  }

  int rank_;
  int column_ = -1;
  const CellRules& rules_;
  SeenCells& seen_;
  Findings& findings_;
};

}  // namespace

bool check_row_count(const std::vector<Row>& rows, const Placement& placement, Findings& findings) {
  const bool holds = static_cast<int>(rows.size()) == placement.ranks();
  if (!holds) {
    findings.add(
        Rule::kOutOfRange, -1, -1,
        "rows must be one per rank = " + std::to_string(placement.ranks()) + ", got " + std::to_string(rows.size()));
  }
  return holds;
}

void check_cells(int rank, const Row& row, const CellRules& rules, SeenCells& seen, Findings& findings) {
  Checker checker(rank, rules, seen, findings);
  for (std::size_t column = 0; column < row.size() && !findings.full(); ++column) {
    checker.check_action(static_cast<int>(column), row[column]);
  }
}

void check_deferred(int rank, const Row& row, const CellRules& rules, SeenCells& seen, Findings& findings) {
  Checker checker(rank, rules, seen, findings);
  for (const Action& action : row) {
    if (action.is_overlap() || action.op.kind != Kind::kBackwardWeight) {
      findings.add(Rule::kOutOfRange, rank, -1, "only W can be left to the optimizer step, got " + to_string(action));
    } else {
      checker.check_action(-1, action);
    }
  }
}

}  // namespace dualpipe::analysis
