// plugin/schedule/folded_row.h
//
// The order of DualPipe, written once. Seen from a rank there are two lanes: 0, whose micro-batches enter at the near
// end of the pipeline and reach the rank first, and 1, whose micro-batches come from the far end (DualPipe) or back
// from the turn (DualPipeV). What the rank does depends on its distance from the near end alone.
//
// The order is that of the reference implementation of the DeepSeek-V3 Technical Report (2024), section 3.2.1, in the
// eight phases that it names; digits are lanes and "F0B1" stands for an overlapped pair:
//   nF0, nF0F1, nB1W1F1, nF0B1F1B0, nB1F1B0, nB1B0, nWB0, nW
#pragma once

#include <array>

#include "plugin/schedule/schedule.h"

namespace dualpipe {

// What lane 0 or 1 is on one rank.
struct Lane {
  int stage;
  int first_micro_batch;
};

struct FoldedShape {
  int depth;     // Ranks between this one and its near end: 0..half-1.
  int half;      // R: the ranks from the near end to the middle or the turn.
  int per_lane;  // Micro-batches per lane, at least 2 x half.
};

Row folded_row(const FoldedShape& shape, const std::array<Lane, 2>& lanes);

}  // namespace dualpipe
