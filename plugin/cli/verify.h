// plugin/cli/verify.h
//
// Both validations of a schedule, with the explanation a command prints.
#pragma once

#include <optional>
#include <string>

#include "plugin/schedule/schedule.h"

namespace dualpipe::cli {

// Validates the compute-only schedule, then its lowered program with `slots` per edge. The first violation, explained;
// nothing where there is none.
std::optional<std::string> find_violation(const Schedule& schedule, bool colour);

// The slots that find_violation() lowers with: the default, or more where the schedule needs them.
int slots_for(const Schedule& schedule);

}  // namespace dualpipe::cli
