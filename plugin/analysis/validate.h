// plugin/analysis/validate.h
//
// validate(): what is wrong with a schedule, as data. Empty means: every rank runs every action it must, once, in an
// order that dependencies allow, and no transport that we use can deadlock.
#pragma once

#include <string>
#include <vector>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct Violation {
  enum class Rule {
    kMissing,         // An F, or a B, or a pair of I and W, stands nowhere.
    kRepeated,        // Stands more than once, or B stands beside I or W of the same (stage, micro-batch).
    kOrder,           // On one rank: B or I before F, W before I, a hand-over before its result, ...
    kWrongRank,       // The stage, or the stage and micro-batch, is not this rank's.
    kOutOfRange,      // Stage or micro-batch does not exist, or an overlapped pair is not (F; B).
    kDeadlock,        // Under tagged asynchronous rendezvous the ranks wait for each other.
    kSlots,           // Under in-order channels with the program's k slots per edge the ranks wait for each other.
    kEdgeOrder,       // A directed edge posts its receives in another order than its messages are sent.
    kReductionOrder,  // Two mirrors reduce the gradients of their stages in different orders.
  };
  Rule rule;
  int rank = -1;    // -1 where no single rank is at fault.
  int column = -1;  // Index into the rank's row, -1 for what is missing.
  std::string message;
};

std::string to_string(Violation::Rule rule);

struct ValidateOptions {
  std::size_t max_violations = 20;
  // W left to the optimizer-step hook: a missing closing W is no violation.
  bool defer_tail_weight_gradients = false;
};

// The compute-only schedule, and whether it can run to its end at all (kDeadlock).
std::vector<Violation> validate(const Schedule& schedule, const ValidateOptions& options = {});

// The lowered program: its cells as above, every message sent, received and waited for once, reductions after the last
// W or B; then, where the cells hold, kEdgeOrder, kDeadlock or kSlots by running it against both transports
// (plugin/analysis/explore.h). One that holds no REDUCE_GRAD at all is taken for LowerOptions::reduce_grad = false.
std::vector<Violation> validate(const Program& program, const ValidateOptions& options = {});

// The violation as a user reads it: the rule and message, then the schedule's rows near the cell (all of them where
// they are few), the cell marked. `colour` uses ANSI escapes.
std::string explain(const Schedule& schedule, const Violation& violation, bool colour = false);
// The same over a lowered program, whose columns a violation of validate(Program) counts.
std::string explain(const Program& program, const Violation& violation, bool colour = false);

}  // namespace dualpipe
