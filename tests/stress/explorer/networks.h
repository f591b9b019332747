// tests/stress/explorer/networks.h
//
// Networks (network.h) of schedules and of lowered programs. Of plugin/ they know the values alone: Op, Action, Row,
// Placement, Schedule, Program.
#pragma once

#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"
#include "tests/stress/explorer/network.h"

namespace dualpipe::stress {

// How a pair takes its two messages.
enum class PairTakes { kAsTheyCome, kForwardFirst };

// Whoever computes what another rank needs sends it right away, F before B; receives are posted long before, in the
// order in which the other rank sends. A step per action, or two where kForwardFirst. Cells must stand in range and on
// their ranks.
Network network_of(const Schedule& schedule, PairTakes takes);

// The program's own sends, receives and waits, a step per action. Cells must hold (ledger.h).
Network network_of(const Program& program);

// True if every directed edge posts its receives in the order in which its messages are sent.
bool edges_agree(const Network& network);

}  // namespace dualpipe::stress
