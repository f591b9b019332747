// plugin/cli/process.h
//
// Programs that a command starts and waits for: run_job().
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dualpipe::cli {

struct Program {
  std::vector<std::string> arguments;            // The program first, looked up in PATH.
  std::map<std::string, std::string> variables;  // Over those of this process.
};

// What one run consists of: a launcher, or every rank by itself.
using Job = std::vector<Program>;

struct JobOptions {
  std::filesystem::path log;  // Gets standard output and error of all programs; standard input is empty.
  std::optional<std::chrono::seconds> timeout;  // Of the whole job.
  std::function<void()> poll = {};              // Called several times a second while the job runs.
};

// Starts all programs, each in a process group of its own, and waits for them. The result is empty where each left with
// 0, else it says of the first that did not how it ended: "exit code 1", "signal 9 (Killed)", "still running after
// 60 s". The others get some seconds to notice, then all groups are ended, and with a program what it left behind in
// its group. On SIGINT, SIGTERM or SIGHUP, unless it ignores them, the groups are ended first, at once on a second one,
// and then this process by the first. Throws ScheduleError where a program or the log cannot be opened. Not for
// programs with threads that handle signals.
std::optional<std::string> run_job(const Job& job, const JobOptions& options);

}  // namespace dualpipe::cli
