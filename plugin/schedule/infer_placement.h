// plugin/schedule/infer_placement.h
//
// Where stages live, told from the rows of a file alone.
#pragma once

#include <string_view>
#include <vector>

#include "plugin/schedule/schedule.h"

namespace dualpipe {

// The placement that most operations agree with: each stage on the rank where most of its operations stand, or, where
// more agree with it, every stage on ranks s and P-1-s with the lower half of the micro-batches on s. So one operation
// on the wrong rank is left for validate() to point at. Throws ScheduleError, with `origin`, for a stage that stands
// nowhere or a rank that no stage is left for.
Placement infer_placement(const std::vector<Row>& rows, int num_microbatches, std::string_view origin);

}  // namespace dualpipe
