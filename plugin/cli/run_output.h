// plugin/cli/run_output.h
//
// read_output(): the run files of a run that was asked for one schedule.
#pragma once

#include <filesystem>
#include <string>

#include "plugin/compare/run_files.h"

namespace dualpipe::cli {

// As read_run(). Throws ScheduleError also where the timelines say that another schedule ran. They may name a schedule
// that is a path by its file alone.
RunFiles read_output(const std::filesystem::path& output, const std::string& schedule);

}  // namespace dualpipe::cli
