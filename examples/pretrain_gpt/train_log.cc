#include "examples/pretrain_gpt/train_log.h"

#include <fmt/format.h>
#include <unistd.h>

namespace pretrain_gpt {

TrainLog::TrainLog(const Config& config, std::FILE* stream)
    : config_(config),
      stream_(stream),
      is_terminal_(::isatty(::fileno(stream)) == 1),
      metrics_(std::filesystem::path(config.output_dir) / "metrics.jsonl") {}

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
