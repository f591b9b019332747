#include "tests/bench/support/meeting.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace dualpipe::bench {
namespace {

// Ranks leave at about the same time, unless one died.
constexpr std::chrono::seconds kLeaving{20};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw std::runtime_error(fmt::format("{} is not set: this program is started by a benchmark", name));
  return value;
}

c10::intrusive_ptr<c10d::Store> make_store(bool host) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.isServer = host;
  options.waitWorkers = false;
  options.timeout = std::chrono::minutes(5);
  return c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
}

}  // namespace

Meeting meet() {
  const int rank = std::stoi(variable("RANK"));
  return {rank, std::stoi(variable("WORLD_SIZE")), make_store(rank == 0)};
}

void leave(const Meeting& meeting) noexcept {
  try {
    meeting.store->add("left", 1);
    const auto bound = std::chrono::steady_clock::now() + kLeaving;
    while (meeting.rank == 0 && meeting.store->add("left", 0) < meeting.size &&
           std::chrono::steady_clock::now() < bound) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const std::exception&) {
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> make_local_group(const Meeting& meeting) {
  using c10d::ProcessGroup;
  using c10d::ProcessGroupGloo;
  const auto options = ProcessGroupGloo::Options::create(std::chrono::minutes(5));
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", meeting.store);
  auto group = c10::make_intrusive<ProcessGroup>(meeting.store, meeting.rank, meeting.size);
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<ProcessGroupGloo>(gloo_store, meeting.rank, meeting.size, options));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace dualpipe::bench
