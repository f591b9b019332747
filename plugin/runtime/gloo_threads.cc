#include "plugin/runtime/gloo_threads.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "DUALPIPE_GLOO_THREADS";

bool may_preempt() {
  const char* variable = std::getenv(kVariable);
  const std::string value = variable != nullptr ? variable : "yield";
  if (value == "yield" || value == "preempt") return value == "preempt";
  throw ScheduleError(kVariable, fmt::format("must be yield or preempt, got '{}'", value));
}

// False too where it has ended meanwhile.
bool is_gloo(const fs::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  return name == "gloo_tcp_loop";
}

bool make_yield(pid_t thread) {
  const int given = sched_getscheduler(thread), reset_on_fork = given & SCHED_RESET_ON_FORK;
  if (given < 0) return false;
  if (given - reset_on_fork != SCHED_OTHER) return given - reset_on_fork == SCHED_BATCH;
  const sched_param priority{};
  return sched_setscheduler(thread, SCHED_BATCH | reset_on_fork, &priority) == 0;
}

// Numbers in the /proc of another namespace would be those of others.
bool is_own_proc() {
  std::error_code error;
  return fs::read_symlink("/proc/self", error) == std::to_string(getpid());
}

}  // namespace

int make_gloo_threads_yield() {
  int count = 0;
  if (may_preempt() || !is_own_proc()) return count;
  std::error_code error;
  fs::directory_iterator task("/proc/self/task", error), end;
  for (; !error && task != end; task.increment(error)) {
    if (is_gloo(task->path())) count += make_yield(std::stoi(task->path().filename()));
  }
  return count;
}

}  // namespace dualpipe
