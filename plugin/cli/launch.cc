#include "plugin/cli/launch.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <random>
#include <regex>
#include <sstream>

#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

constexpr std::size_t kLongestCause = 300;
constexpr int kLowestPort = 10000, kHighestPort = 32768;

bool is_program(const fs::path& path) { return fs::is_regular_file(path) && access(path.c_str(), X_OK) == 0; }

fs::path own_folder() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

std::optional<fs::path> find_in_path(const std::string& name) {
  const char* variable = std::getenv("PATH");
  std::istringstream folders(variable == nullptr ? "" : variable);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (is_program(candidate)) return candidate;
  }
  return std::nullopt;
}

// The checkout is where the command is called, or three folders above build/<preset>/bin.
std::optional<fs::path> find_torchrun() {
  for (const fs::path& checkout : {fs::path("."), own_folder() / "../../.."}) {
    const fs::path candidate = checkout / ".venv/bin/torchrun";
    if (is_program(candidate)) return candidate;
  }
  return find_in_path("torchrun");
}

// Where ports begin that the kernel gives to connections by itself: one of those may be gone before it is used.
int first_of_the_kernels_ports() {
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0;
  return range >> first && first >= kLowestPort + 1000 ? first : kHighestPort;
}

bool is_free(int port) {
  const int handle = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool bound = handle >= 0 && bind(handle, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(handle);
  return bound;
}

int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(kLowestPort, first_of_the_kernels_ports() - 1);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (const int port = ports(random); is_free(port)) return port;
  }
  throw ScheduleError("launch", "a port of 127.0.0.1 must be free for the processes to meet, got none");
}

Variables run_variables(const std::string& schedule, const fs::path& output) {
  return {{"DUALPIPE_SCHEDULE", schedule}, {"DUALPIPE_OUTPUT", fs::absolute(output).string()}};
}

std::vector<std::string> trainer_arguments(const TrainerRun& run) {
  std::vector<std::string> arguments = {run.program, "train", "--config", run.config};
  for (const std::string& override : run.overrides) {
    arguments.push_back("--set");
    arguments.push_back(override);
  }
  return arguments;
}

Job torchrun_job(const fs::path& torchrun, const TrainerRun& run, Variables variables) {
  std::vector<std::string> arguments = {
      torchrun.string(), "--nproc-per-node", std::to_string(run.nproc),   "--master-addr",
      "127.0.0.1",       "--master-port",    std::to_string(free_port()), "--no-python"};
  for (std::string& argument : trainer_arguments(run)) arguments.push_back(std::move(argument));
  return {{std::move(arguments), std::move(variables)}};
}

Job rank_job(const TrainerRun& run, const Variables& variables) {
  Job job;
  const std::string size = std::to_string(run.nproc);
  const std::string port = std::to_string(free_port());
  for (int rank = 0; rank < run.nproc; ++rank) {
    Variables own = variables;
    own.insert({{"RANK", std::to_string(rank)},
                {"LOCAL_RANK", std::to_string(rank)},
                {"WORLD_SIZE", size},
                {"LOCAL_WORLD_SIZE", size},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", port}});
    job.push_back({trainer_arguments(run), std::move(own)});
  }
  return job;
}

// What the programs themselves said went wrong: the first error that is told as C++ or Python programs do, else the
// last line.
std::string find_cause(const fs::path& log) {
  const std::regex error(R"(^(\[[^\]]*\]:? ?)?(error: |([A-Za-z_.]*(Error|Exception)): ).*)");
  std::ifstream in(log);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    const std::string start = line.substr(0, kLongestCause);
    if (std::regex_match(start, error)) return start;
    if (start.find_first_not_of(" \t\r") != std::string::npos) last = start;
  }
  return last;
}

}  // namespace

std::string find_trainer(const std::string& program) {
  if (!program.empty()) {
    if (is_program(program)) return program;
    throw ScheduleError("launch", fmt::format("--program must be a program that can be run, got '{}'", program));
  }
  const fs::path beside = own_folder() / "pretrain_gpt";
  if (is_program(beside)) return beside.string();
  if (const auto found = find_in_path("pretrain_gpt")) return found->string();
  throw ScheduleError("launch", fmt::format("the trainer must be at '{}' or in PATH, got neither; build it with `make "
                                            "build`, or name it with --program",
                                            beside.string()));
}

Job trainer_job(const TrainerRun& run, const std::string& schedule, const fs::path& output) {
  Variables variables = run_variables(schedule, output);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) variables.emplace("OMP_NUM_THREADS", "1");
  if (const auto torchrun = find_torchrun()) return torchrun_job(*torchrun, run, std::move(variables));
  return rank_job(run, variables);
}

Job command_job(const std::string& command, const std::string& schedule, const fs::path& output) {
  return {{{"/bin/sh", "-c", command}, run_variables(schedule, output)}};
}

std::optional<std::string> run_in(const fs::path& output, const Job& job, JobOptions options) {
  std::error_code error;
  fs::create_directories(output, error);
  if (error) throw ScheduleError("launch", fmt::format("cannot make '{}': {}", output.string(), error.message()));
  options.log = output / "output.log";
  std::optional<std::string> failure = run_job(job, options);
  if (!failure) return std::nullopt;
  const std::string cause = find_cause(options.log);
  return cause.empty() ? *failure : fmt::format("{}: {}", *failure, cause);
}

std::string tail(const fs::path& file, std::size_t lines) {
  std::ifstream in(file);
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back(line);
    if (last.size() > lines) last.pop_front();
  }
  std::string text;
  for (const std::string& line : last) text += line + "\n";
  return text;
}

}  // namespace dualpipe::cli
