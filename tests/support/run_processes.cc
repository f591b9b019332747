#include "tests/support/run_processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace dualpipe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kBody = "DUALPIPE_TEST_BODY";
constexpr const char* kRank = "DUALPIPE_TEST_RANK";
constexpr const char* kSize = "DUALPIPE_TEST_SIZE";
constexpr const char* kPort = "DUALPIPE_TEST_PORT";
constexpr const char* kDirectory = "DUALPIPE_TEST_DIRECTORY";
constexpr const char* kArgument = "DUALPIPE_TEST_ARGUMENT_";
constexpr std::chrono::milliseconds kPoll{2};

std::map<std::string, ProcessBody>& bodies() {
  static std::map<std::string, ProcessBody> registered;
  return registered;
}

// Bound to a free port. LibTorch's own socket is of IPv6, for which the store would ask a server of names who each
// client is, and wait.
int loopback_socket() {
  const int bound = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bound < 0 || ::bind(bound, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::system_error(errno, std::generic_category(), "a free port");
  }
  return bound;
}

c10::intrusive_ptr<c10d::TCPStore> make_store(int port, bool server, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = server;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (server) {
    options.masterListenFd = loopback_socket();
  }
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

class FreshDirectory {
 public:
  FreshDirectory() {
    std::string path = (fs::temp_directory_path() / "dualpipe-test-XXXXXX").string();
    if (!::mkdtemp(path.data())) {
      throw std::runtime_error("cannot make a directory like " + path);
    }
    path_ = path;
    fs::create_directory(common());
  }
  ~FreshDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  FreshDirectory(const FreshDirectory&) = delete;
  FreshDirectory& operator=(const FreshDirectory&) = delete;

  fs::path common() const { return path_ / "common"; }
  fs::path log(int rank, const char* stream) const { return path_ / ("rank" + std::to_string(rank) + "." + stream); }

 private:
  fs::path path_;
};

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Name=value strings, and the array of pointers that execve wants.
class Environment {
 public:
  Environment() {
    for (char** entry = environ; *entry; ++entry) {
      entries_.emplace_back(*entry);
    }
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(entries_, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    entries_.push_back(name + "=" + value);
  }
  std::vector<char*> pointers() {
    std::vector<char*> result;
    for (std::string& entry : entries_) {
      result.push_back(entry.data());
    }
    result.push_back(nullptr);
    return result;
  }

 private:
  std::vector<std::string> entries_;
};

// Between fork and exec of a program with threads: system calls alone.
[[noreturn]] void become_child(pid_t parent, const char* out, const char* err, char* const* envp) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out_file = ::open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err_file = ::open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (::getppid() != parent || ::dup2(out_file, STDOUT_FILENO) < 0 || ::dup2(err_file, STDERR_FILENO) < 0) {
    ::_exit(126);
  }
  char name[] = "rank";
  char* const argv[] = {name, nullptr};
  ::execve("/proc/self/exe", argv, envp);
  ::_exit(127);
}

pid_t start(const fs::path& out, const fs::path& err, Environment& environment) {
  const std::vector<char*> envp = environment.pointers();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become_child(parent, out.c_str(), err.c_str(), envp.data());
  }
  if (child < 0) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  return child;
}

// The children of one call. None outlives it.
class Children {
 public:
  Children() = default;
  ~Children() { end_the_rest(); }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  void add(pid_t pid) {
    pids_.push_back(pid);
    outcomes_.emplace_back();
  }

  std::vector<Outcome> wait(std::chrono::milliseconds bound) {
    while (!all_ended() && Clock::now() - start_ < bound) {
      std::this_thread::sleep_for(kPoll);
    }
    end_the_rest();
    return std::move(outcomes_);
  }

 private:
  static constexpr pid_t kEnded = 0;

  bool all_ended() {
    bool all = true;
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      all = (pids_[i] == kEnded || reap(i, WNOHANG)) && all;
    }
    return all;
  }

  bool reap(std::size_t i, int flags) {
    int status = 0;
    if (::waitpid(pids_[i], &status, flags) != pids_[i]) {
      return false;
    }
    pids_[i] = kEnded;
    Outcome& outcome = outcomes_[i];
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (WIFEXITED(status)) {
      outcome.exit_code = WEXITSTATUS(status);
    } else {
      outcome.signal = WTERMSIG(status);
    }
    return true;
  }

  void end_the_rest() {
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] != kEnded) {
        ::kill(pids_[i], SIGKILL);
        reap(i, 0);
        outcomes_[i].late = true;
      }
    }
  }

  const Clock::time_point start_ = Clock::now();
  std::vector<pid_t> pids_;
  std::vector<Outcome> outcomes_;
};

std::string environment_or_throw(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (!value) {
    throw std::runtime_error(name + " is not set");
  }
  return value;
}

Process this_process() {
  Process process;
  process.rank = std::stoi(environment_or_throw(kRank));
  process.size = std::stoi(environment_or_throw(kSize));
  process.store_port = std::stoi(environment_or_throw(kPort));
  process.directory = environment_or_throw(kDirectory);
  for (int i = 0; const char* value = std::getenv((kArgument + std::to_string(i)).c_str()); ++i) {
    process.args.emplace_back(value);
  }
  return process;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> Process::connect(std::chrono::milliseconds timeout) const {
  return make_store(store_port, false, timeout);
}

std::string Outcome::to_string() const {
  std::ostringstream text;
  if (exit_code) {
    text << "exit code " << *exit_code;
  } else {
    text << "signal " << signal.value_or(0);
  }
  text << (late ? " (killed at the bound)" : "") << " after " << seconds << " s\n" << out << err;
  return text.str();
}

std::vector<Outcome> run_processes(int processes, const std::string& body, const std::vector<std::string>& args,
                                   const ProcessOptions& options) {
  const FreshDirectory directory;
  const auto store = make_store(0, true, std::chrono::seconds(60));
  Environment environment;
  environment.set(kBody, body);
  environment.set(kSize, std::to_string(processes));
  environment.set(kPort, std::to_string(store->getPort()));
  environment.set(kDirectory, directory.common().string());
  for (std::size_t i = 0; i < args.size(); ++i) {
    environment.set(kArgument + std::to_string(i), args[i]);
  }
  for (const auto& [name, value] : options.environment) {
    environment.set(name, value);
  }
  Children children;
  for (int rank = 0; rank < processes; ++rank) {
    environment.set(kRank, std::to_string(rank));
    children.add(start(directory.log(rank, "out"), directory.log(rank, "err"), environment));
  }
  std::vector<Outcome> outcomes = children.wait(options.bound);
  for (int rank = 0; rank < processes; ++rank) {
    outcomes[rank].out = read_file(directory.log(rank, "out"));
    outcomes[rank].err = read_file(directory.log(rank, "err"));
  }
  return outcomes;
}

std::optional<int> run_as_child() {
  const char* name = std::getenv(kBody);
  if (!name) {
    return std::nullopt;
  }
  try {
    bodies().at(name)(this_process());
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}

ProcessBodyRegistration::ProcessBodyRegistration(const std::string& name, ProcessBody body) {
  bodies().emplace(name, std::move(body));
}

}  // namespace dualpipe
