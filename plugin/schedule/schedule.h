// plugin/schedule/schedule.h
//
// The plan as a value. A Schedule holds compute actions only; lower() adds sends, receives and reductions and gives a
// Program. Both are rows of actions, one row per rank, in the order in which the rank starts them.
#pragma once

#include <string>
#include <vector>

#include "plugin/schedule/action.h"
#include "plugin/schedule/placement.h"

namespace dualpipe {

using Row = std::vector<Action>;

struct Schedule {
  std::string name;  // As registered, or the path of the CSV file.
  Placement placement;
  int num_microbatches = 0;  // M, over both directions.
  std::vector<Row> rows;     // F, B, I, W and overlapped pairs.
};

// What a generator is asked for.
struct ScheduleSpec {
  int pipeline_model_parallel_size = 1;          // P, ranks of the pipeline.
  int num_microbatches = 1;                      // M, over both directions.
  int virtual_pipeline_model_parallel_size = 2;  // Chunks per rank; read by interleaved_1f1b alone.
};

}  // namespace dualpipe
