#include "plugin/cli/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

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
// `timeout` and terminals signal a process and its group, which is one request.
constexpr std::chrono::milliseconds kOneRequest{300};

void require(int error, const std::string& what) {
  if (error != 0) throw ScheduleError("launch", what + ": " + std::strerror(error));
}

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// While it lives, the signals of interest wait until they are asked for; those that this process was started to ignore,
// as by nohup, stay ignored.
class SignalInbox {
 public:
  SignalInbox() {
    sigemptyset(&wanted_);
    sigaddset(&wanted_, SIGCHLD);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      if (!is_ignored(signal)) sigaddset(&wanted_, signal);
    }
    // Where it is ignored, nobody learns how a child ended.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &usual, &child_before_);
    pthread_sigmask(SIG_BLOCK, &wanted_, &before_);
  }
  ~SignalInbox() {
    sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  // Until a signal comes, or for a moment.
  void wait() {
    const timespec moment{0, kPollNanoseconds};
    const int signal = sigtimedwait(&wanted_, nullptr, &moment);
    if (signal <= 0 || signal == SIGCHLD) return;
    const Clock::time_point now = Clock::now();
    insists_ |= asked_ && now - asked_at_ > kOneRequest;
    if (asked_) return;
    asked_ = signal;
    asked_at_ = now;
  }

  // The first signal that asked this process to end, and whether another followed.
  const std::optional<int>& asked() const { return asked_; }
  bool insists() const { return insists_; }

  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  sigset_t wanted_{};
  struct sigaction child_before_ {};
  std::optional<int> asked_;
  Clock::time_point asked_at_;
  bool insists_ = false;
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

// Nothing while the child runs, else whether it still has a status. It is not reaped, so its number stays its own.
std::optional<bool> has_left(pid_t process) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return errno == ECHILD ? std::optional(false) : std::nullopt;
  return info.si_pid == process ? std::optional(true) : std::nullopt;
}

// /proc/<process>/stat: number (name) state parent group ...; the name may hold anything.
bool runs_in(const std::filesystem::path& stat, pid_t group) {
  std::ifstream in(stat);
  std::string text;
  std::getline(in, text, '\0');
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  char state = 'X';
  pid_t parent = 0, own_group = 0;
  return rest >> state >> parent >> own_group && own_group == group && state != 'Z' && state != 'X';
}

bool has_members(pid_t group) {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) && runs_in(entry->path() / "stat", group)) return true;
  }
  return false;
}

// The processes of a job, every one the leader of its group. What runs when this goes is ended.
class Group {
 public:
  explicit Group(SignalInbox& inbox) : inbox_(inbox) {}
  ~Group() { end(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void add(pid_t process) { running_.push_back(process); }
  bool is_running() const { return !running_.empty(); }
  const std::optional<std::string>& failure() const { return failure_; }

  // Takes the state of those that have left, the first failure among them, and ends what they left behind.
  void collect() {
    std::erase_if(running_, [&](pid_t process) {
      const std::optional<bool> has_status = has_left(process);
      if (has_status) reap(process, *has_status);
      return has_status.has_value();
    });
  }

  // A leader that ends at once leaves its group the time that it has: a launcher may have to end others first.
  void end() {
    signal_all(SIGTERM);
    const auto has_time = [&, deadline = Clock::now() + kTimeToEnd] {
      return !inbox_.insists() && Clock::now() < deadline;
    };
    while (has_time() && std::any_of(running_.begin(), running_.end(), has_members)) inbox_.wait();
    signal_all(SIGKILL);
    for (const pid_t process : running_) waitpid(process, nullptr, 0);
    running_.clear();
  }

 private:
  void signal_all(int signal) const {
    for (const pid_t process : running_) kill(-process, signal);
  }

  void reap(pid_t process, bool has_status) {
    int status = 0;
    if (has_status) kill(-process, SIGKILL);
    const bool is_known = has_status && waitpid(process, &status, 0) == process;
    if (!failure_) failure_ = is_known ? describe(status) : "gone without an exit code";
  }

  SignalInbox& inbox_;
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

std::optional<std::string> wait_for(Group& group, SignalInbox& inbox, const JobOptions& options) {
  Deadline deadline = first_deadline(options);
  for (; group.is_running() && !inbox.asked(); group.collect()) {
    if (group.failure() && deadline.failure != *group.failure())
      deadline = {std::min(deadline.time, Clock::now() + kTimeToNotice), *group.failure()};
    if (Clock::now() >= deadline.time) {
      group.end();
      return deadline.failure;
    }
    inbox.wait();
    if (options.poll) options.poll();
  }
  group.end();
  return group.failure();
}

}  // namespace

std::optional<std::string> run_job(const Job& job, const JobOptions& options) {
  SignalInbox inbox;
  Group group(inbox);
  for (const Program& program : job) group.add(start(program, options.log, inbox.before()));
  std::optional<std::string> failure = wait_for(group, inbox, options);
  if (inbox.asked()) leave_by(*inbox.asked());
  return failure;
}

}  // namespace dualpipe::cli
