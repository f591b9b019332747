// plugin/runtime/timeline_file.h
//
// timeline_rank<R>.jsonl: what this rank ran and when, step by step, for `dualpipe ab` and reports (docs/run_files.md).
//
//   dualpipe::TimelineFile timeline(folder, dualpipe::timeline_header(pipeline));
//   timeline.append(iteration, {.statistics = pipeline.statistics()});
//
// The first line is the header, then one line per append(). A line is on its way to the disk when append() returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/dualpipe.h"

namespace dualpipe {

// Ranks are those of the run in `rank`, `world_size`, of the pipeline else. Bytes that are not known are left out.
struct TimelineHeader {
  std::string schedule;
  int rank = 0;
  int world_size = 1;
  int pipeline_rank = 0;
  int pipeline_model_parallel_size = 1;
  int num_microbatches = 1;
  int num_stages = 1;
  std::vector<int> stages;
  std::optional<std::int64_t> parameter_bytes;
  std::optional<std::int64_t> gradient_bytes;
  std::optional<std::int64_t> optimizer_bytes;
};

// All that the pipeline knows: the rank is that of PipelineOptions::parallel where there is a world; gradients count as
// they lie now, in `.grad` or the host's buffers, so ask after a step; the optimizer's bytes are the host's to add.
TimelineHeader timeline_header(const Pipeline& pipeline);

struct TimelineStep {
  const StepStatistics& statistics;
  std::optional<double> seconds = {};  // From the step's begin to its end; default: to the end of the last span.
  std::optional<std::int64_t> peak_activation_bytes = {};
};

class TimelineFile {
 public:
  // Starts <folder>/timeline_rank<R>.jsonl anew; the folder is there. Throws ScheduleError where it cannot be written,
  // as append() does.
  TimelineFile(const std::filesystem::path& folder, const TimelineHeader& header);

  void append(std::int64_t iteration, const TimelineStep& step);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& line);

  std::filesystem::path path_;
  std::ofstream stream_;
};

// The lines themselves, without their ends.
std::string header_line(const TimelineHeader& header);
std::string step_line(std::int64_t iteration, const TimelineStep& step);

// Unix time in seconds by the clock of StepStatistics::began.
double unix_seconds();

}  // namespace dualpipe
