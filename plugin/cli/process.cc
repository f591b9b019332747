#include "plugin/cli/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "plugin/schedule/error.h"

// NOLINTNEXTLINE(readability-redundant-declaration): POSIX leaves it to the program.
extern char** environ;

namespace dualpipe::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr long kPollNanoseconds = 200'000'000;
constexpr seconds kTimeToNotice{30};  // For the other ranks, once one has failed.
constexpr seconds kTimeToEnd{40};     // From SIGTERM to SIGKILL: torchrun gives its workers 30 s.

void require(int error, const std::string& what) {
  if (error != 0) throw ScheduleError("launch", what + ": " + std::strerror(error));
}

// While it lives, the signals of interest wait until they are asked for.
class SignalInbox {
 public:
  SignalInbox() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, signal);
    pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    wanted_ = wanted;
  }
  ~SignalInbox() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  // Waits for a signal, or for a moment. Gives one that asks this process to end.
  std::optional<int> wait() const {
    const timespec moment{0, kPollNanoseconds};
    const int signal = sigtimedwait(&wanted_, nullptr, &moment);
    return signal > 0 && signal != SIGCHLD ? std::optional(signal) : std::nullopt;
  }

  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  sigset_t wanted_{};
};

class SpawnAttributes {
 public:
  explicit SpawnAttributes(const sigset_t& mask) {
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setsigmask(&attributes_, &mask);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

class SpawnFiles {
 public:
  explicit SpawnFiles(const std::filesystem::path& log) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  ~SpawnFiles() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnFiles(const SpawnFiles&) = delete;
  SpawnFiles& operator=(const SpawnFiles&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

pid_t start(Program program, const std::filesystem::path& log, const sigset_t& mask) {
  std::vector<std::string> variables = environment_with(program.variables);
  const SpawnAttributes attributes(mask);
  const SpawnFiles files(log);
  pid_t process = 0;
  require(posix_spawnp(&process, program.arguments.front().c_str(), files.get(), attributes.get(),
                       pointers(program.arguments).data(), pointers(variables).data()),
          "cannot start '" + program.arguments.front() + "' with its output in '" + log.string() + "'");
  return process;
}

std::optional<std::string> describe(int status) {
  if (WIFSIGNALED(status))
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  if (WEXITSTATUS(status) != 0) return "exit code " + std::to_string(WEXITSTATUS(status));
  return std::nullopt;
}

// The processes of a job, every one the leader of its group. What runs when this goes is ended.
class Group {
 public:
  explicit Group(const SignalInbox& inbox) : inbox_(inbox) {}
  ~Group() { end(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void add(pid_t process) { running_.push_back(process); }
  bool is_running() const { return !running_.empty(); }
  const std::optional<std::string>& failure() const { return failure_; }

  // Takes the state of those that have left, the first failure among them.
  void collect() {
    std::erase_if(running_, [&](pid_t process) {
      int status = 0;
      if (waitpid(process, &status, WNOHANG) != process) return false;
      if (!failure_) failure_ = describe(status);
      return true;
    });
  }

  void end() {
    signal_all(SIGTERM);
    for (const auto deadline = Clock::now() + kTimeToEnd; is_running() && Clock::now() < deadline; collect())
      inbox_.wait();
    signal_all(SIGKILL);
    for (const pid_t process : running_) waitpid(process, nullptr, 0);
    running_.clear();
  }

 private:
  void signal_all(int signal) const {
    for (const pid_t process : running_) kill(-process, signal);
  }

  const SignalInbox& inbox_;
  std::vector<pid_t> running_;
  std::optional<std::string> failure_;
};

// Leaves as the signal asks, so that a shell or a script sees what happened.
[[noreturn]] void leave_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  _exit(128 + signal);
}

// When the job has to be over, and what it is then told to have done wrong.
struct Deadline {
  Clock::time_point time = Clock::time_point::max();
  std::string failure;
};

Deadline first_deadline(const JobOptions& options) {
  if (!options.timeout) return {};
  return {Clock::now() + *options.timeout, "still running after " + std::to_string(options.timeout->count()) + " s"};
}

std::optional<std::string> wait_for(Group& group, const SignalInbox& inbox, const JobOptions& options) {
  Deadline deadline = first_deadline(options);
  for (; group.is_running(); group.collect()) {
    if (group.failure() && deadline.failure != *group.failure())
      deadline = {std::min(deadline.time, Clock::now() + kTimeToNotice), *group.failure()};
    if (Clock::now() >= deadline.time) {
      group.end();
      return deadline.failure;
    }
    if (const std::optional<int> signal = inbox.wait()) {
      group.end();
      leave_by(*signal);
    }
    if (options.poll) options.poll();
  }
  return group.failure();
}

}  // namespace

std::optional<std::string> run_job(const Job& job, const JobOptions& options) {
  const SignalInbox inbox;
  Group group(inbox);
  for (const Program& program : job) group.add(start(program, options.log, inbox.before()));
  return wait_for(group, inbox, options);
}

}  // namespace dualpipe::cli
