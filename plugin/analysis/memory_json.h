// plugin/analysis/memory_json.h
//
// What ranks hold, as the JSON of a report.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "plugin/analysis/memory.h"

namespace dualpipe::analysis {

// A list of an object per rank, or null for none.
nlohmann::ordered_json memory_json(const std::vector<RankMemory>& ranks);

}  // namespace dualpipe::analysis
