// tests/stress/explorer/explore.h
//
// explore(): what is wrong with a schedule or a program, found by running it and by counting its cells (network.h,
// ledger.h), for comparison with validate(), of which nothing is used.
#pragma once

#include <set>
#include <string>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe::stress {

enum class Fault {
  kCells,           // Rows do not hold what they must, or not in an order that a rank can keep.
  kReductionOrder,  // Two mirrors reduce in different orders.
  kEdgeOrder,       // A directed edge posts its receives in another order than its messages are sent.
  kDeadlock,        // Under tagged rendezvous the ranks wait for each other.
  kSlots,           // Under in-order channels with the program's slots they do.
};

using Faults = std::set<Fault>;

std::string to_string(const Faults& faults);

// kCells and kReductionOrder come alone: what does not hold is not run.
Faults explore(const Schedule& schedule);
Faults explore(const Program& program, bool defers = false);

}  // namespace dualpipe::stress
