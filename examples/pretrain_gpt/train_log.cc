#include "examples/pretrain_gpt/train_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

namespace pretrain_gpt {

namespace {

constexpr const char* kMetrics = "metrics.jsonl";

// Those of iterations 1 to `done`, one after the other.
std::vector<std::string> lines_of(const std::filesystem::path& path, std::int64_t done) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; static_cast<std::int64_t>(lines.size()) < done && std::getline(file, line);) {
    if (!line.starts_with(fmt::format("{{\"iteration\":{},", lines.size() + 1))) {
      break;
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

TrainLog::TrainLog(const Config& config, std::FILE* stream, std::int64_t done)
    : config_(config),
      stream_(stream),
      is_terminal_(::isatty(::fileno(stream)) == 1),
      metrics_(std::filesystem::path(config.output_dir) / kMetrics,
               lines_of(std::filesystem::path(config.output_dir) / kMetrics, done)) {}

void TrainLog::say(const std::string& line) {
  erase_bar();
  std::fputs((line + "\n").c_str(), stream_);
  std::fflush(stream_);
}

void TrainLog::add(const IterationRecord& record) {
  metrics_.append(metrics_line(record));
  interval_.add(record);
  const bool is_last = record.iteration == config_.train_iters;
  if (record.iteration % config_.log_interval == 0 || is_last) {
    say(megatron_line(interval_, config_));
    interval_ = {};
  }
  if (is_terminal_ && !is_last) {
    draw_bar(record.iteration);
  }
}

void TrainLog::draw_bar(std::int64_t iteration) {
  erase_bar();
  std::fputs(progress_bar(iteration, config_.train_iters, 40).c_str(), stream_);
  std::fflush(stream_);
  bar_is_drawn_ = true;
}

void TrainLog::erase_bar() {
  if (bar_is_drawn_) {
    std::fputs("\r\x1b[K", stream_);
    bar_is_drawn_ = false;
  }
}

std::string progress_bar(std::int64_t done, std::int64_t total, int width) {
  const auto full = static_cast<int>(done * width / total);
  std::string cells;
  for (int cell = 0; cell < width; ++cell) {
    cells += cell < full ? "█" : " ";
  }
  return fmt::format("[{}] {:3}%  {}/{}", cells, done * 100 / total, done, total);
}

}  // namespace pretrain_gpt
