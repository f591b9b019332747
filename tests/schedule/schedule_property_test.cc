// What holds for every schedule, size and row that can be drawn.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

Op any_op(Kind kind) {
  const int micro_batch = has_micro_batch(kind) ? *rc::gen::inRange(0, 100000) : 0;
  return make_op(*rc::gen::inRange(0, 65536), kind, micro_batch);
}

Action any_action() {
  if (*rc::gen::inRange(0, 4) == 0) {
    return overlap(any_op(Kind::kForward), any_op(Kind::kBackward));
  }
  return single(any_op(static_cast<Kind>(*rc::gen::inRange(0, kKindCount))));
}

// A built-in schedule of any size that it takes.
Schedule any_schedule() {
  const std::string name = *rc::gen::elementOf(builtin_registry().names());
  int ranks = *rc::gen::inRange(1, 7);
  int micro_batches = *rc::gen::inRange(1, 25);
  if (name == "interleaved_1f1b") {
    micro_batches *= ranks;
  }
  if (name == "dualpipe") {
    micro_batches = 4 * ranks + 2 * micro_batches;
    ranks *= 2;
  }
  if (name == "dualpipev") {
    micro_batches += 2 * ranks;
  }
  return builtin_registry().make(name, {ranks, micro_batches, *rc::gen::inRange(2, 4)});
}

void check_property(const std::string& name, void (*property)()) { ASSERT_TRUE(rc::check(name, property)); }

TEST(TextProperty, RowsParseToWhatWasPrinted) {
  check_property("parse_row(print_row(row)) == row", [] {
    Row row(*rc::gen::inRange(0, 40));
    std::generate(row.begin(), row.end(), any_action);
    RC_ASSERT(parse_row(print_row(row)) == row);
  });
}

TEST(TextProperty, RandomCellsAreReadOrRefused) {
  check_property("parse_action() throws nothing but ScheduleError, and prints back what it takes", [] {
    const auto cell = *rc::gen::container<std::string>(
        rc::gen::element('0', '1', '9', 'F', 'B', 'W', 'I', '(', ')', ';', '_', 'S', 'E', 'N', 'D', ' ', ','));
    try {
      const Action action = parse_action(cell);
      RC_ASSERT(parse_action(to_string(action)) == action);
    } catch (const std::invalid_argument& error) {
      RC_ASSERT(std::string(error.what()).starts_with("[schedule text] "));
    }
  });
}

TEST(TextProperty, SchedulesParseToWhatWasPrinted) {
  check_property("parse_schedule() is the inverse of print_rows()", [] {
    const Schedule schedule = any_schedule();
    std::ostringstream text;
    print_rows(text, schedule.rows);
    const Schedule parsed = parse_schedule(text.str(), schedule.name);
    RC_ASSERT(parsed.rows == schedule.rows);
    RC_ASSERT(parsed.num_microbatches == schedule.num_microbatches);
    RC_ASSERT(parsed.placement == schedule.placement);
    const Program program = lower(schedule);
    std::ostringstream lowered;
    print_rows(lowered, program.rows);
    RC_ASSERT(parse_schedule(lowered.str(), schedule.name).rows == schedule.rows);
  });
}

std::vector<Op> parts(const Action& action) {
  return action.paired ? std::vector<Op>{action.op, *action.paired} : std::vector<Op>{action.op};
}

// Name of a message at either end: the receive.
Op receive_of(const Op& op) {
  const bool forward = op.kind == Kind::kSendForward || op.kind == Kind::kWaitSendForward;
  return make_op(forward ? op.stage + 1 : op.stage - 1, forward ? Kind::kRecvForward : Kind::kRecvBackward,
                 op.micro_batch);
}

Op receive_for(const Op& compute) {
  return make_op(compute.stage, compute.kind == Kind::kForward ? Kind::kRecvForward : Kind::kRecvBackward,
                 compute.micro_batch);
}

int sender_of(const Placement& placement, const Op& recv) {
  return placement.rank_of(recv.kind == Kind::kRecvForward ? recv.stage - 1 : recv.stage + 1, recv.micro_batch);
}

// Goes through one rank's row and checks what can be told from it alone.
class RowChecker {
 public:
  RowChecker(const Program& program, int rank) : placement_(program.placement), slots_(program.slots) {
    for (const Action& action : program.rows[rank]) {
      for (const Op& op : parts(action)) {
        visit(op);
      }
    }
    RC_ASSERT(waiting_.empty());
    RC_ASSERT(std::all_of(held_.begin(), held_.end(), [](const auto& held) { return held.second.empty(); }));
  }

 private:
  void visit(const Op& op) {
    if (is_send(op.kind)) {
      RC_ASSERT(waiting_.insert(receive_of(op)).second);
    } else if (is_wait_send(op.kind)) {
      RC_ASSERT(waiting_.erase(receive_of(op)) == 1u);
    } else if (is_recv(op.kind)) {
      RC_ASSERT(op.kind == Kind::kRecvForward || forwards_.count({op.stage, op.micro_batch}) == 1u);
      std::set<Op>& held = held_[sender_of(placement_, op)];
      RC_ASSERT(held.insert(op).second);
      RC_ASSERT(static_cast<int>(held.size()) <= slots_);
    } else if (is_compute(op.kind)) {
      if (op.kind == Kind::kForward) {
        forwards_.insert({op.stage, op.micro_batch});
      }
      if (needs_message(op)) {
        RC_ASSERT(held_[sender_of(placement_, receive_for(op))].erase(receive_for(op)) == 1u);
      }
    }
  }

  bool needs_message(const Op& op) const {
    const int stage = op.kind == Kind::kForward ? op.stage - 1 : op.stage + 1;
    return op.kind != Kind::kBackwardWeight && stage >= 0 && stage < placement_.stages() &&
           placement_.rank_of(stage, op.micro_batch) != placement_.rank_of(op.stage, op.micro_batch);
  }

  const Placement& placement_;
  const int slots_;
  std::set<Op> waiting_;                    // Sends without their wait.
  std::map<int, std::set<Op>> held_;        // By sender: posted and not consumed.
  std::set<std::pair<int, int>> forwards_;  // (stage, micro-batch)
};

using EdgeOrders = std::map<std::pair<int, int>, std::vector<Op>>;

EdgeOrders orders(const Program& program, bool of_sends) {
  EdgeOrders orders;
  for (int rank = 0; rank < program.placement.ranks(); ++rank) {
    for (const Action& action : program.rows[rank]) {
      const Op& op = action.op;
      if (of_sends && is_send(op.kind)) {
        const Op recv = receive_of(op);
        orders[{rank, program.placement.rank_of(recv.stage, recv.micro_batch)}].push_back(recv);
      } else if (!of_sends && is_recv(op.kind)) {
        orders[{sender_of(program.placement, op), rank}].push_back(op);
      }
    }
  }
  return orders;
}

Program any_program() { return lower(any_schedule(), {.slots = *rc::gen::inRange(kDefaultSlots, 5)}); }

TEST(LowerProperty, ReceivesArePostedInTheSendersOrder) {
  check_property("one order per edge", [] {
    const Program program = any_program();
    RC_ASSERT(orders(program, true) == orders(program, false));
  });
}

TEST(LowerProperty, SlotsWaitsAndShapesAreKept) {
  check_property("slots, waits and shapes", [] {
    const Program program = any_program();
    for (int rank = 0; rank < program.placement.ranks(); ++rank) {
      RowChecker(program, rank);
    }
  });
}

TEST(LowerProperty, ComputeIsLeftAsItWas) {
  check_property("dropping communication gives the schedule back", [] {
    const Schedule schedule = any_schedule();
    LowerOptions options;
    options.defer_tail_weight_gradients = *rc::gen::arbitrary<bool>();
    const Program program = lower(schedule, options);
    for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
      Row compute = program.rows[rank];
      std::erase_if(compute, [](const Action& action) { return !is_compute(action.op.kind); });
      compute.insert(compute.end(), program.deferred_weight[rank].begin(), program.deferred_weight[rank].end());
      RC_ASSERT(compute == schedule.rows[rank]);
    }
  });
}

TEST(LowerProperty, MirrorsReduceInTheSameOrder) {
  check_property("reductions of a stage's holders", [] {
    const Program program = any_program();
    for (int rank = 0; rank < program.placement.ranks(); ++rank) {
      const auto reductions = [&](int of) {
        Row row = program.rows[of];
        std::erase_if(row, [](const Action& action) { return action.op.kind != Kind::kReduceGrad; });
        return row;
      };
      RC_ASSERT(reductions(rank).size() == program.placement.stages_of(rank).size());
      RC_ASSERT(reductions(rank) == reductions(program.placement.mirror_of(rank).value_or(rank)));
    }
  });
}

}  // namespace
}  // namespace dualpipe
