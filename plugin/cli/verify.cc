#include "plugin/cli/verify.h"

#include <algorithm>

#include "plugin/analysis/validate.h"
#include "plugin/schedule/lower.h"

namespace dualpipe::cli {

int slots_for(const Schedule& schedule) { return std::max(kDefaultSlots, least_slots(schedule)); }

std::optional<std::string> find_violation(const Schedule& schedule, Depth depth, bool colour) {
  const ValidateOptions first_only{.max_violations = 1};
  for (const Violation& violation : validate(schedule, first_only)) {
    return explain(schedule, violation, colour);
  }
  if (depth == Depth::kSchedule) {
    return std::nullopt;
  }
  const Program program = lower(schedule, {.slots = slots_for(schedule)});
  for (const Violation& violation : validate(program, first_only)) {
    return explain(program, violation, colour);
  }
  return std::nullopt;
}

}  // namespace dualpipe::cli
