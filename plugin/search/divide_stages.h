// plugin/search/divide_stages.h
//
// Costs and bytes of a model cut into some number of stages, for a cut into another.
#pragma once

#include <vector>

#include "plugin/analysis/cost_file.h"

namespace dualpipe::search {

// As analysis/divide_stages.h has it, which says what can be divided. The latency stays.
CostModel divide_costs(const CostModel& cost, int from_stages, int to_stages);
std::vector<StageBytes> divide_bytes(const std::vector<StageBytes>& bytes, int to_stages);

}  // namespace dualpipe::search
