#include "plugin/cli/run_rounds.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "plugin/cli/launch.h"
#include "plugin/cli/run_output.h"
#include "plugin/cli/run_progress.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLogLines = 15;

// A schedule may be a path, and two of them the same but for their slashes.
std::vector<std::string> folder_names(std::vector<std::string> schedules) {
  std::set<std::string> taken;
  for (std::string& name : schedules) {
    std::replace(name.begin(), name.end(), '/', '_');
    const std::string plain = name;
    for (int again = 2; !taken.insert(name).second; ++again) name = fmt::format("{}-{}", plain, again);
  }
  return schedules;
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
      : options_(options),
        folders_(folder_names(options.schedules)),
        progress_(options.rounds * static_cast<int>(options.schedules.size()), options.iterations) {
    for (const std::string& schedule : options.schedules) runs_.push_back({schedule, std::nullopt, {}});
  }

  std::vector<ScheduleRuns> run() {
    bool goes_on = true;
    for (int round = 0; round < options_.rounds && goes_on; ++round) goes_on = run_round(round);
    return std::move(runs_);
  }

 private:
  // Whether the series goes on.
  bool run_round(int round) {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const std::size_t index = (i + round) % runs_.size();
      if (runs_[index].failure) continue;
      run_one(index, round);
      if (options_.should_stop(runs_)) return false;
    }
    return true;
  }

  void run_one(std::size_t index, int round) {
    ScheduleRuns& run = runs_[index];
    const std::string name = fmt::format("round {}/{} {}", round + 1, options_.rounds, run.schedule);
    const fs::path output = options_.folder / folders_[index] / fmt::format("round{}", round + 1);
    progress_.begin(name, output / "metrics.jsonl");
    try_run(run, output);
    run.failure ? report_failure(run, output, round) : progress_.finish(mean_ms(run.rounds.back()));
  }

  void try_run(ScheduleRuns& run, const fs::path& output) {
    try {
      run.failure = run_in(output, options_.job(run.schedule, output),
                           {.log = {}, .timeout = options_.timeout, .poll = [&] { progress_.update(); }});
      if (!run.failure) run.rounds.push_back(read_output(output, run.schedule));
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
  std::vector<std::string> folders_;  // By schedule.
  RunProgress progress_;
  std::vector<ScheduleRuns> runs_;
};

}  // namespace

std::vector<ScheduleRuns> run_rounds(const RoundsOptions& options) { return Series(options).run(); }

}  // namespace dualpipe::cli
