// plugin/search/divide_stages.h
//
// Costs and bytes of a model cut into some number of stages, for a cut into another.
#pragma once

#include <vector>

#include "plugin/search/choose_schedule.h"

namespace dualpipe::search {

// Each new stage takes as much of the old ones as it covers of the model, where every old stage counts as equally long:
// neighbours are summed, or one stage is divided evenly. The latency stays.
CostModel divide_costs(const CostModel& cost, int from_stages, int to_stages);
std::vector<StageMemory> divide_memory(const std::vector<StageMemory>& memory, int to_stages);

}  // namespace dualpipe::search
