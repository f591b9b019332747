// plugin/analysis/memory.h
//
// memory_of(): what the ranks of a schedule hold at their worst moment, in bytes.
#pragma once

#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct RankMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // The most at once, by the definition of live of simulate.h.

  double total() const { return parameters + gradients + optimizer + activations; }
};

// Per rank. `bytes` has an entry per stage; a rank holds everything of each of its stages, so a stage of a
// bidirectional placement counts on both of its ranks.
std::vector<RankMemory> memory_of(const Schedule& schedule, const std::vector<StageBytes>& bytes);

}  // namespace dualpipe
