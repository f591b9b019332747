// plugin/cli/launch.h
//
// How a training run is started so that it writes the files of docs/run_files.md: DUALPIPE_SCHEDULE and DUALPIPE_OUTPUT
// are set for it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plugin/cli/process.h"

namespace dualpipe::cli {

// The C++ trainer, `pretrain_gpt train`.
struct TrainerRun {
  std::string config;                  // YAML file.
  std::string program;                 // Empty: pretrain_gpt beside this program, else in PATH.
  int nproc = 4;                       // Processes on this machine.
  std::vector<std::string> overrides;  // key=value.
};

// The trainer's program. Throws ScheduleError where there is none that can be run.
std::string find_trainer(const std::string& program);

// By torchrun of the checkout's .venv or of PATH; without one, a process per rank with RANK and WORLD_SIZE set. `run`
// has a program already (find_trainer()).
Job trainer_job(const TrainerRun& run, const std::string& schedule, const std::filesystem::path& output);

// A shell's command line, for any host.
Job command_job(const std::string& command, const std::string& schedule, const std::filesystem::path& output);

// Runs the job with its log at output/output.log. The result is empty where it went well, else what failed and what
// the log says about it, in one line.
std::optional<std::string> run_in(const std::filesystem::path& output, const Job& job, JobOptions options);

// The last lines of a text file, each ended.
std::string tail(const std::filesystem::path& file, std::size_t lines);

}  // namespace dualpipe::cli
