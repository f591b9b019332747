#include "plugin/analysis/validate.h"
#include "plugin/schedule/lower.h"
#include "plugin/search/improve.h"
#include "plugin/search/words.h"

namespace dualpipe::search {

bool is_sound(const Lanes& lanes, const Words& words) {
  constexpr ValidateOptions kFirst{.max_violations = 1};
  const Schedule schedule = to_schedule(lanes, words);
  return validate(schedule, kFirst).empty() && least_slots(schedule) <= kDefaultSlots &&
         least_slots(forward_only(schedule)) <= kDefaultSlots && validate(lower(schedule), kFirst).empty();
}

}  // namespace dualpipe::search
