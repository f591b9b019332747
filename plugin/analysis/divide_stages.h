// plugin/analysis/divide_stages.h
//
// How the stages of one division of a model make up those of another: neighbours are summed, or each is divided evenly.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dualpipe::analysis {

// Whether one number divides the other; nothing else is divided.
inline bool can_divide(int from_stages, int to_stages) {
  return from_stages >= 1 && to_stages >= 1 && (from_stages % to_stages == 0 || to_stages % from_stages == 0);
}

// Calls visit(to, from, share) for all that overlap: `share` of stage `from` lies in stage `to`.
template <class Visit>
void for_each_share(int from_stages, int to_stages, Visit visit) {
  const std::int64_t parts = std::max(from_stages, to_stages);
  for (std::int64_t part = 0; part < parts; ++part) {
    visit(static_cast<int>(part * to_stages / parts), static_cast<int>(part * from_stages / parts),
          static_cast<double>(from_stages) / static_cast<double>(parts));
  }
}

}  // namespace dualpipe::analysis
