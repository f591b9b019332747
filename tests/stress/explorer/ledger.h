// tests/stress/explorer/ledger.h
//
// Whether the rows hold what they must: every operation that the placement asks for, once, on its rank, and in an order
// that its own rank can keep. Written from the rules of plugin/schedule/lower.h and plugin/analysis/validate.h as
// lists of operations and positions, with nothing of the library but its values.
#pragma once

#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe::stress {

bool cells_hold(const Schedule& schedule);

// `defers`: the W in Program::deferred_weight count as standing behind the rows.
bool cells_hold(const Program& program, bool defers);

// Both ranks of each pair of mirrors reduce the same stages in the same order.
bool mirrors_agree(const Program& program);

}  // namespace dualpipe::stress
