// plugin/analysis/cost_model.h
//
// What actions cost, in one unit of the caller's choice. F, I, W and F&B may be given per stage.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugin/schedule/action.h"

namespace dualpipe {

// Of a cost, and of bytes: what keeps the sums of a schedule finite.
inline constexpr double kMostCost = 1e15;

struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;  // B costs backward_input + backward_weight.
  double overlapped = 3;       // F&B, one forward and one full backward overlapped. Of the forward's stage.

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

struct CostModel {
  StageCost uniform;
  std::vector<StageCost> per_stage;  // Empty, or one entry per stage, which then replaces `uniform`.
  double latency = 0;                // From the end of the sender's action until the receiver may start.

  const StageCost& of(int stage) const { return per_stage.empty() ? uniform : per_stage[stage]; }
  double duration(const Action& action) const;
};

// "forward=1,backward_input=1,backward_weight=1,overlapped=3,latency=0", any subset in any order. Where `overlapped` is
// not given it is forward + backward_input + backward_weight: nothing is gained by a pair. Throws ScheduleError for an
// unknown key (with the nearest valid one), a negative or non-finite number, a repeated key.
CostModel parse_cost(std::string_view text);

}  // namespace dualpipe
