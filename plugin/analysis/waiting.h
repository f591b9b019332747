// plugin/analysis/waiting.h
//
// Who waits for whom when ranks are stuck, and the circle that they wait in, told in one sentence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/findings.h"

namespace dualpipe::analysis {

struct Wait {
  int rank = 0;
  int column = 0;
  int peer = 0;      // The rank that would have to move first; it may have ended, or be `rank` itself.
  std::string text;  // "rank 0 waits at 0B3 for 1B3 of rank 1"
};

// waits[rank] is empty where the rank reached its end; at least one is not. Adds one violation, at the lowest rank of
// the circle, or at the last rank of a chain that ends at a rank that is not stuck.
void add_deadlock(Violation::Rule rule, const std::vector<std::optional<Wait>>& waits, Findings& findings);

}  // namespace dualpipe::analysis
