// plugin/compare/run_bytes.h
//
// add_bytes(): what stages hold, from what ranks hold.
#pragma once

#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/compare/run_files.h"

namespace dualpipe::compare {

// Fills the byte counts of `stages`, as far as the host wrote them (run_cost.h says how).
void add_bytes(const RunFiles& run, std::vector<CostFileStage>& stages);

}  // namespace dualpipe::compare
