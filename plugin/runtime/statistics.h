// plugin/runtime/statistics.h
//
// What a step did, as this rank ran it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

struct StepStatistics {
  std::vector<Span> spans;   // Compute actions in the order in which they ran; seconds since the step began. A row of a
                             // Timeline.
  int peak_activations = 0;  // Most (stage, micro-batch) live at once, by the simulator's definition.
  std::size_t peak_pending_weight_bytes = 0;  // Largest WeightGradStore::pending_bytes().
  std::size_t messages_sent = 0;
  std::size_t bytes_sent = 0;
  int overlapped_pairs = 0;                     // Pairs that a hook ran.
  std::map<std::string, int> sequential_pairs;  // Pairs that ran in sequence, by reason.

  // "12 of 14 pairs overlapped; 2 in sequence: stage 3 offers no overlapped_forward_backward"
  std::string overlap_summary() const;
};

}  // namespace dualpipe
