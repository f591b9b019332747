// plugin/cli/run_progress.h
//
// How far a series of runs is, on standard error: a bar where that is a terminal, a line per finished run elsewhere.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace dualpipe::cli {

class RunProgress {
 public:
  // `iterations` of a run, where that is known beforehand.
  RunProgress(int runs, std::optional<int> iterations);
  ~RunProgress();
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;

  // The next run begins; it writes its iterations into `metrics`.
  void begin(const std::string& name, std::filesystem::path metrics);
  // Looks how far the run is. Cheap enough for several times a second.
  void update();
  // The run is over; `result` in a few words.
  void finish(const std::string& result);
  // A line above the bar.
  void say(const std::string& line);
  // There will be fewer runs: those of a schedule that failed are left out.
  void drop_runs(int runs) { runs_ -= runs; }

 private:
  void draw(double done_of_run);
  void erase();
  std::string remaining(double done) const;

  const bool is_terminal_;
  int runs_;
  std::optional<int> iterations_;
  int finished_ = 0;
  bool is_drawn_ = false;
  std::string name_;
  std::filesystem::path metrics_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point run_began_ = began_;
};

}  // namespace dualpipe::cli
