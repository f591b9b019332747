// plugin/cli/schedule_options.h
//
// The options that name a schedule and its costs, shared by the commands that plan one.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "plugin/cli/cost_source.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe::cli {

struct ScheduleOptions {
  bool takes_all = false;  // Whether the command lists every schedule under the name `all`.
  std::string schedule = {};
  std::optional<int> ranks = {};
  std::optional<int> num_microbatches = {};
  int chunks = 2;
  std::optional<std::string> cost = {};

  bool is_file() const { return schedule.ends_with(".csv"); }
  // Throws ScheduleError for a mistake in --cost.
  CostSource costs() const { return CostSource(cost); }
};

// --schedule, --pipeline-model-parallel-size, --num-microbatches, --virtual-pipeline-model-parallel-size and --cost.
void add_schedule_options(CLI::App& command, ScheduleOptions& options);

// P, M and chunks. Throws ScheduleError with `command` as the origin where P or M is missing.
ScheduleSpec required_spec(const std::string& command, const ScheduleOptions& options);

// The named schedule, or the file's. Throws ScheduleError with `command` as the origin where a size is missing or is
// not the file's.
Schedule make_schedule(const std::string& command, const ScheduleOptions& options);

}  // namespace dualpipe::cli
