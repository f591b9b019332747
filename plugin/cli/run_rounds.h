// plugin/cli/run_rounds.h
//
// run_rounds(): one training under several schedules, several times, interleaved in time.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugin/cli/process.h"
#include "plugin/compare/comparison.h"

namespace dualpipe::cli {

struct RoundsOptions {
  std::vector<std::string> schedules;
  int rounds = 3;
  std::filesystem::path folder;                 // Gets <schedule>/round<k> per run, k from 1.
  std::optional<int> iterations;                // Of a run, where that is known beforehand; for the progress bar.
  std::optional<std::chrono::seconds> timeout;  // Of a run.
  std::function<Job(const std::string& schedule, const std::filesystem::path& output)> job;
  // Asked after each run with what there is so far, of a schedule that has not run yet nothing; true ends it there.
  std::function<bool(const std::vector<ScheduleRuns>&)> should_stop;
};

// In a round every schedule runs once; the first of a round is the second of the one before, so that none is always
// the first. A run that cannot be started, whose programs fail or whose files cannot be read is told on standard error
// with the end of its log; its schedule fails and is left out of later rounds.
std::vector<ScheduleRuns> run_rounds(const RoundsOptions& options);

}  // namespace dualpipe::cli
