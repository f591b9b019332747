#include "plugin/runtime/gloo_threads.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

int ranks_here(int group_size) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (const int ranks = std::atoi(variable(name).value_or("").c_str()); ranks > 0) return ranks;
  }
  return group_size;
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

bool should_gloo_threads_yield(const std::optional<std::string>& variable, int ranks, int processors) {
  if (!variable) return ranks > processors;
  if (*variable == "yield" || *variable == "preempt") return *variable == "yield";
  throw ScheduleError("DUALPIPE_GLOO_THREADS", fmt::format("must be yield or preempt, got '{}'", *variable));
}

int make_gloo_threads_yield(int group_size) {
  const auto processors = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const bool should = should_gloo_threads_yield(variable("DUALPIPE_GLOO_THREADS"), ranks_here(group_size), processors);
  int count = 0;
  if (!should || !is_own_proc()) return count;
  std::error_code error;
  fs::directory_iterator task("/proc/self/task", error), end;
  for (; !error && task != end; task.increment(error)) {
    if (is_gloo(task->path())) count += make_yield(std::stoi(task->path().filename()));
  }
  return count;
}

}  // namespace dualpipe
