#include "plugin/runtime/statistics.h"

#include <fmt/format.h>

namespace dualpipe {

std::string StepStatistics::overlap_summary() const {
  int sequential = 0;
  for (const auto& [reason, count] : sequential_pairs) sequential += count;
  std::string text = fmt::format("{} of {} pairs overlapped", overlapped_pairs, overlapped_pairs + sequential);
  if (pairs_by_phases > 0) text += fmt::format(", {} by phases", pairs_by_phases);
  for (const auto& [reason, count] : sequential_pairs) text += fmt::format("; {} in sequence: {}", count, reason);
  return text;
}

}  // namespace dualpipe
