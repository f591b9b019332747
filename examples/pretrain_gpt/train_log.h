// examples/pretrain_gpt/train_log.h
//
// Where the records of a run go: every step to <output_dir>/metrics.jsonl, a line per log_interval to a stream, and,
// where that stream is a terminal, a progress bar below the lines. Rank 0 owns one; the other ranks have none.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "examples/pretrain_gpt/iteration_record.h"
#include "examples/pretrain_gpt/line_file.h"

namespace pretrain_gpt {

class TrainLog {
 public:
  // Starts metrics.jsonl anew, but for the lines of iterations up to `done`, with which the run goes on. Throws
  // UserError where it cannot be written. `config` outlives the log.
  TrainLog(const Config& config, std::FILE* stream, std::int64_t done = 0);

  void say(const std::string& line);
  // Throws UserError where metrics.jsonl cannot take the record, for one on a full disk.
  void add(const IterationRecord& record);

  const std::filesystem::path& metrics_path() const { return metrics_.path(); }

 private:
  void draw_bar(std::int64_t iteration);
  void erase_bar();

  const Config& config_;
  std::FILE* stream_;
  bool is_terminal_;
  bool bar_is_drawn_ = false;
  LineFile metrics_;
  LogInterval interval_;
};

// "[████████            ]  40%  80/200", `width` characters between the brackets.
std::string progress_bar(std::int64_t done, std::int64_t total, int width);

}  // namespace pretrain_gpt
