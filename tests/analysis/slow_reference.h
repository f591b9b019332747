// tests/analysis/slow_reference.h
//
// Slow, obvious versions of simulate() and validate(): maps, positions and full scans, nothing shared with the library.
#pragma once

#include <set>
#include <vector>

#include "plugin/analysis/cost_model.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/lower.h"

namespace dualpipe {

using Rules = std::set<Violation::Rule>;

Rules rules_of(const std::vector<Violation>& violations);

// The start of every action: of all ranks' next actions, the one that can start first runs next. Empty if the ranks
// wait for each other.
std::vector<std::vector<double>> slow_simulate(const Schedule& schedule, const CostModel& cost);

// The rules that a compute-only schedule breaks.
Rules slow_validate(const Schedule& schedule);

// The rules that a lowered program breaks, given that `sound` is the program as lower() gave it. Where a row does not
// hold the very operations of the sound one, or an order of its own is broken, that is all that is found out:
// `kMissing`.
Rules slow_validate(const Program& program, const Program& sound);

}  // namespace dualpipe
