// examples/pretrain_gpt/timeline_file.h
//
// <output_dir>/timeline_rank<R>.jsonl: what a rank ran and when, for programs that compare runs. JSON lines, first a
// header, then a line per recorded step. Times are in seconds since the step began; `began` is Unix time; `seconds` is
// the whole step's, the optimizer included. What a schedule does not tell is left out.
//
//   {"format": "dualpipe-timeline", "version": 1, "schedule": "builtin_1f1b", "rank": 0, "world_size": 4, ...}
//   {"iteration": 196, "began": 1764460800.123, "seconds": 0.51, "spans": [["0F0", 0.0012, 0.0051], ...],
//    "phases": [["0F0 0.dispatch", 0.0030, 0.0050, 0.0004], ...], ..., "memory": [[0.0, 0], [0.0051, 4096], ...]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/line_file.h"
#include "examples/pretrain_gpt/memory_formula.h"
#include "examples/pretrain_gpt/step_trace.h"

namespace pretrain_gpt {

struct TimelineHeader {
  std::string schedule;
  int rank = 0;  // Of the run, as is world_size.
  int world_size = 1;
  int pipeline_rank = 0;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t num_microbatches = 1;  // Of one pipeline.
  int num_stages = 1;
  std::vector<int> stages;  // Of this rank.
  StateBytes bytes;         // As measured.
};

struct TimelineStep {
  std::int64_t iteration = 0;  // From 1.
  double seconds = 0;
  StepTrace trace;
  std::int64_t peak_activation_bytes = 0;  // The most that the step held beyond what it began with and gradients.
};

// Without the end of the line.
std::string timeline_header_line(const TimelineHeader& header);
std::string timeline_step_line(const TimelineStep& step);

std::filesystem::path timeline_path(const std::filesystem::path& output_dir, int rank);

}  // namespace pretrain_gpt
