// plugin/cli/verify.h
//
// Both validations of a schedule, with the explanation a command prints.
#pragma once

#include <optional>
#include <string>

#include "plugin/schedule/schedule.h"

namespace dualpipe::cli {

// The compute-only schedule alone, or its lowered program as well. A built-in schedule's program is held sound by the
// tests, and takes four times the memory of the schedule, so a plan of one does without.
enum class Depth { kSchedule, kProgram };

// The first violation, explained; nothing where there is none. The program is lowered with slots_for(schedule).
std::optional<std::string> find_violation(const Schedule& schedule, Depth depth, bool colour);

// The slots that find_violation() lowers with: the default, or more where the schedule needs them.
int slots_for(const Schedule& schedule);

}  // namespace dualpipe::cli
