// plugin/cli/summary.h
//
// A plan in numbers for a reader, below the grid.
#pragma once

#include <string>
#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/analysis/report.h"

namespace dualpipe::cli {

// A number without trailing zeros: 6, 2.25, 0.333333.
std::string number(double value);
// "forward 1, backward_input 1, ..." with the B that follows from them; where stages differ, "1 to 2" over them.
std::string describe(const CostModel& cost);
// "1.5 GB", of 10^9 bytes.
std::string byte_text(double bytes);
// "6 on every rank", or "2.25 to 3.75 (rank 0 to 7: ...)" for a few ranks, or the extremes for many.
std::string per_rank(const std::vector<double>& values);

// Lines "name  value", each ended.
std::string summarize(const Schedule& schedule, const FittedCost& fitted, const PlanReport& report);

}  // namespace dualpipe::cli
