// plugin/schedule/phase.h
//
// The phases of a stage: what a layer computes and communicates, in order, as far as the merge of an overlapped pair
// needs to know it.
#pragma once

#include <string>
#include <vector>

namespace dualpipe {

enum class PhaseKind {
  kCompute,        // F, and backward in two parts: I, then W at any time after it.
  kCommunication,  // Posted and awaited; backward is one exchange (or none).
};

// One phase with what its parts cost, in one unit of the caller's choice. A part that costs 0 still stands in the
// program, unless the phase says that it has none.
struct PhaseSpec {
  std::string name;  // "0.attention"
  PhaseKind kind = PhaseKind::kCompute;
  double forward = 1;
  double backward_input = 1;   // Of communication: the gradients' way back.
  double backward_weight = 1;  // Compute alone.
  bool has_backward = true;    // False: nothing moves back (an exchange of split sizes), nothing waits for it.

  friend bool operator==(const PhaseSpec&, const PhaseSpec&) = default;
};

// In the order of the forward. Any order of compute and communication is legal.
using Phases = std::vector<PhaseSpec>;

}  // namespace dualpipe
