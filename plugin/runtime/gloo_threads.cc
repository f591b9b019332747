#include "plugin/runtime/gloo_threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kVariable = "DUALPIPE_GLOO_THREADS";

bool may_preempt() {
  const char* variable = std::getenv(kVariable);
  const std::string value = variable != nullptr ? variable : "yield";
  if (value == "yield" || value == "preempt") return value == "preempt";
  throw ScheduleError(kVariable, fmt::format("must be yield or preempt, got '{}'", value));
}

std::string name_of(const std::filesystem::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  return name;
}

}  // namespace

void make_gloo_threads_yield() {
  if (may_preempt()) return;
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error), end;
  for (; !error && task != end; task.increment(error)) {
    if (name_of(task->path()) != "gloo_tcp_loop") continue;
    const pid_t thread = std::stoi(task->path().filename());
    const sched_param priority{};
    if (sched_getscheduler(thread) == SCHED_OTHER) sched_setscheduler(thread, SCHED_BATCH, &priority);
  }
}

}  // namespace dualpipe
