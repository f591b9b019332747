#include "examples/two_linears/launch.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <csignal>
#include <cstdlib>
#include <string>

namespace two_linears {
namespace {

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// Rank 0 hosts the store, unless torchrun's agent does.
c10::intrusive_ptr<c10d::Store> make_store(int rank, int size) {
  if (size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT", "29500")));
  options.isServer = rank == 0 && variable("TORCHELASTIC_USE_AGENT_STORE", "") != "True";
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR", "127.0.0.1"), options);
  return c10::make_intrusive<c10d::PrefixStore>("two_linears", std::move(store));
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> process_group() {
  std::signal(SIGPIPE, SIG_IGN);  // A peer that leaves is an error to report, not the end of this process.
  using c10d::ProcessGroup;
  using c10d::ProcessGroupGloo;
  const int rank = std::stoi(variable("RANK", "0"));
  const int size = std::stoi(variable("WORLD_SIZE", "1"));
  const auto store = make_store(rank, size);
  auto options = ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace two_linears
