#include "plugin/cli/run_rounds.h"

#include <fmt/core.h>

#include <algorithm>

#include "plugin/cli/launch.h"
#include "plugin/cli/run_progress.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLogLines = 15;

// A schedule may be a path.
std::string folder_name(std::string schedule) {
  std::replace(schedule.begin(), schedule.end(), '/', '_');
  return schedule;
}

std::string last_part_of_log(const fs::path& output) {
  const fs::path log = output / "output.log";
  return fmt::format("--- the last lines of {}\n{}---", log.string(), tail(log, kLogLines));
}

std::string mean_ms(const RunFiles& files) {
  double sum = 0;
  for (const IterationMetrics& metrics : files.iterations) sum += metrics.ms;
  return fmt::format("{} iterations, {:.1f} ms each", files.iterations.size(),
                     sum / static_cast<double>(files.iterations.size()));
}

class Series {
 public:
  explicit Series(const RoundsOptions& options)
      : options_(options), progress_(options.rounds * static_cast<int>(options.schedules.size()), options.iterations) {
    for (const std::string& schedule : options.schedules) runs_.push_back({schedule, std::nullopt, {}});
  }

  std::vector<ScheduleRuns> run() {
    for (int round = 0; round < options_.rounds; ++round) {
      run_round(round);
      if (round + 1 < options_.rounds && options_.should_stop(runs_)) break;
    }
    return std::move(runs_);
  }

 private:
  void run_round(int round) {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      ScheduleRuns& run = runs_[(i + round) % runs_.size()];
      if (!run.failure) run_one(run, round);
    }
  }

  void run_one(ScheduleRuns& run, int round) {
    const std::string name = fmt::format("round {}/{} {}", round + 1, options_.rounds, run.schedule);
    const fs::path output = options_.folder / folder_name(run.schedule) / fmt::format("round{}", round + 1);
    progress_.begin(name, output / "metrics.jsonl");
    run.failure = run_in(output, options_.job(run.schedule, output),
                         {.log = {}, .timeout = options_.timeout, .poll = [&] { progress_.update(); }});
    if (!run.failure) read_files(run, output);
    run.failure ? report_failure(run, output, round) : progress_.finish(mean_ms(run.rounds.back()));
  }

  void read_files(ScheduleRuns& run, const fs::path& output) {
    try {
      run.rounds.push_back(read_run(output));
    } catch (const ScheduleError& error) {
      run.failure = error.what();
    }
  }

  void report_failure(const ScheduleRuns& run, const fs::path& output, int round) {
    progress_.finish("FAILED: " + *run.failure);
    progress_.say(last_part_of_log(output));
    progress_.drop_runs(options_.rounds - round - 1);
  }

  const RoundsOptions& options_;
  RunProgress progress_;
  std::vector<ScheduleRuns> runs_;
};

}  // namespace

std::vector<ScheduleRuns> run_rounds(const RoundsOptions& options) { return Series(options).run(); }

}  // namespace dualpipe::cli
