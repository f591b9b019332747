#include "plugin/cli/run_progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

namespace dualpipe::cli {
namespace {

constexpr int kCells = 30;

double seconds_since(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - time).count();
}

int count_lines(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

std::string bar(double share) {
  const int full = std::clamp(static_cast<int>(share * kCells), 0, kCells);
  std::string cells;
  for (int cell = 0; cell < kCells; ++cell) cells += cell < full ? "█" : " ";
  return "[" + cells + "]";
}

}  // namespace

RunProgress::RunProgress(int runs, std::optional<int> iterations)
    : is_terminal_(isatty(STDERR_FILENO) == 1), runs_(runs), iterations_(iterations) {}

RunProgress::~RunProgress() { erase(); }

void RunProgress::begin(const std::string& name, std::filesystem::path metrics) {
  name_ = name;
  metrics_ = std::move(metrics);
  run_began_ = std::chrono::steady_clock::now();
  draw(0);
}

void RunProgress::update() {
  if (!is_terminal_) return;
  draw(iterations_ ? std::min(1.0, static_cast<double>(count_lines(metrics_)) / *iterations_) : 0);
}

void RunProgress::finish(const std::string& result) {
  ++finished_;
  say(fmt::format("{:>3}/{}  {:<32} {}  ({:.1f} s)", finished_, runs_, name_, result, seconds_since(run_began_)));
}

void RunProgress::say(const std::string& line) {
  erase();
  fmt::print(stderr, "{}\n", line);
}

std::string RunProgress::remaining(double done) const {
  if (done <= 0) return "";
  const auto seconds = static_cast<int>(seconds_since(began_) * (runs_ - done) / done);
  return fmt::format("  about {}:{:02} left", seconds / 60, seconds % 60);
}

void RunProgress::draw(double done_of_run) {
  if (!is_terminal_) return;
  erase();
  const double done = finished_ + done_of_run;
  fmt::print(stderr, "{} {}/{} runs  {}{}", bar(done / runs_), finished_, runs_, name_, remaining(done));
  std::fflush(stderr);
  is_drawn_ = true;
}

void RunProgress::erase() {
  if (std::exchange(is_drawn_, false)) fmt::print(stderr, "\r\x1b[K");
}

}  // namespace dualpipe::cli
