#include "examples/pretrain_gpt/failures/last_words.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <future>
#include <iostream>
#include <string_view>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/failures/within.h"

namespace pretrain_gpt {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLastMoment = 1s;   // For output, files and logs together.
constexpr std::chrono::milliseconds kSlowReader = 10s;  // Of the output of a run that is done.

// The file that torchrun reads the cause from.
void write_error_file(const std::string& message, ExitCode code) {
  if (const auto file = process_variable("TORCHELASTIC_ERROR_FILE")) {
    const std::string now = std::to_string(std::time(nullptr));
    const nlohmann::json extra = {{"py_callstack", message}, {"timestamp", now}};
    const nlohmann::json content = {
        {"message", {{"message", message}, {"errorCode", static_cast<int>(code)}, {"extraInfo", extra}}}};
    std::ofstream(*file) << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

// Past the C library's locks, which a thread that is stuck may hold. As much as is taken in time: a pipe that is ready
// takes PIPE_BUF bytes without blocking.
void say_on_stderr(std::string_view text, Clock::time_point end) {
  while (!text.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(0, left)));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const ssize_t written =
        count > 0 ? ::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF)) : -1;
    if (written <= 0 && !(count > 0 && errno == EINTR)) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(0, written)));
  }
}

void flush_output() {
  std::cout.flush();
  std::fflush(nullptr);
}

// Here where no thread is to be had: a file is worth the wait.
void add_aside(std::vector<std::future<void>>& calls, const std::function<void()>& call) {
  try {
    calls.push_back(aside(call));
  } catch (const std::system_error&) {
    call();
  }
}

// Never throws: a process that fails for want of memory ends too.
void say_last_words(std::optional<int> rank, const std::string& message, ExitCode code,
                    const std::function<void()>& write_log) noexcept {
  try {
    const Clock::time_point end = Clock::now() + kLastMoment;
    const std::string origin = rank ? fmt::format("[rank {}] ", *rank) : "";
    within(kLastMoment / 5, [] {
      flush_output();
      return true;
    });
    say_on_stderr(fmt::format("{}error: {}\n", origin, message), end);
    std::vector<std::future<void>> calls;
    add_aside(calls, [message, code] { write_error_file(message, code); });
    if (write_log) {
      add_aside(calls, write_log);
    }
    for (const std::future<void>& call : calls) {
      call.wait_until(end);
    }
  } catch (const std::exception&) {
    say_on_stderr("error: out of memory while this process ends\n", Clock::now() + kLastMoment);
  }
}

}  // namespace

void exit_with_error(std::optional<int> rank, const std::string& message, ExitCode code,
                     const std::function<void()>& write_log) {
  say_last_words(rank, message, code, write_log);
  ::_exit(static_cast<int>(code));
}

void exit_done() {
  within(kSlowReader, [] {
    flush_output();
    return true;
  });
  ::_exit(static_cast<int>(ExitCode::kOk));
}

}  // namespace pretrain_gpt
