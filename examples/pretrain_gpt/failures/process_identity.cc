#include "examples/pretrain_gpt/failures/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string first_word(const std::string& text) { return text.substr(0, text.find_first_of(" \n")); }

std::string link_target(const char* path) {
  std::array<char, 128> buffer{};
  const ssize_t length = ::readlink(path, buffer.data(), buffer.size());
  return length < 0 ? "" : std::string(buffer.data(), static_cast<std::size_t>(length));
}

// Field 22 of /proc/<pid>/stat. The second one, a name in parentheses, may hold anything.
std::string start_of(int pid) {
  const std::string stat = content_of(fmt::format("/proc/{}/stat", pid));
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) {
    at = stat.find(' ', at + 1);
  }
  return at == std::string::npos ? "" : first_word(stat.substr(at + 1));
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

std::string this_machine() {
  return first_word(content_of("/proc/sys/kernel/random/boot_id")) + "/" + link_target("/proc/self/ns/pid");
}

}  // namespace

ProcessIdentity this_process() {
  const int pid = static_cast<int>(::getpid());
  return {this_machine(), pid, start_of(pid), host_name()};
}

std::string to_text(const ProcessIdentity& process) {
  return nlohmann::json({process.machine, process.pid, process.started, process.host}).dump();
}

ProcessIdentity identity_from_text(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at(0), json.at(1), json.at(2), json.at(3)};
}

std::string describe(const ProcessIdentity& process) {
  return fmt::format("process {} on {}", process.pid, process.host);
}

void end_if_here(const ProcessIdentity& process) {
  const bool is_here = process.machine == this_machine() && process.pid != static_cast<int>(::getpid());
  if (is_here && !process.started.empty() && start_of(process.pid) == process.started) {
    ::kill(process.pid, SIGKILL);
  }
}

}  // namespace pretrain_gpt
