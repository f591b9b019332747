// plugin/cli/profile_table.h
//
// A cost file and how far to trust it, for a reader.
#pragma once

#include <string>

#include "plugin/compare/run_cost.h"

namespace dualpipe::cli {

std::string to_table(const RunCost& cost);

}  // namespace dualpipe::cli
