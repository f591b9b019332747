#include "examples/pretrain_gpt/distributed.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::shared_ptr<gloo::transport::Device> gloo_device(const Environment& environment) {
  using c10d::ProcessGroupGloo;
  if (const auto interface = process_variable("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  if (environment.local_world_size == environment.world_size) {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

Rendezvous::Rendezvous(const Environment& environment, std::chrono::milliseconds timeout)
    : environment_(environment),
      timeout_(timeout),
      is_host_(environment.rank == 0 && environment.world_size > 1 && !environment.launcher_hosts_store) {
  c10::intrusive_ptr<c10d::Store> alone;
  if (environment.world_size == 1) {
    alone = c10::make_intrusive<c10d::HashStore>();
  }
  store_ = prefixed(alone ? alone : open(is_host_, timeout), timeout);
}

c10::intrusive_ptr<c10d::Store> Rendezvous::connect(std::optional<std::chrono::milliseconds> timeout) const {
  const std::chrono::milliseconds bound = timeout.value_or(timeout_);
  return environment_.world_size == 1 ? store_ : prefixed(open(/*as_host=*/false, bound), bound);
}

c10::intrusive_ptr<c10d::Store> Rendezvous::open(bool as_host, std::chrono::milliseconds timeout) const {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment_.master_port);
  options.isServer = as_host;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment_.master_address, options);
  } catch (const std::exception& error) {
    const std::string rule = as_host ? "must be a free port" : "and MASTER_ADDR must lead to rank 0";
    throw UserError("MASTER_PORT", fmt::format("{}, got {}:{}: {}; for example MASTER_PORT={}", rule,
                                               environment_.master_address, environment_.master_port,
                                               first_line(error.what()), environment_.master_port % 60000 + 1025));
  }
}

c10::intrusive_ptr<c10d::Store> Rendezvous::prefixed(c10::intrusive_ptr<c10d::Store> store,
                                                     std::chrono::milliseconds timeout) const {
  store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("pretrain_gpt/{}", environment_.attempt), std::move(store));
}

GroupMaker::GroupMaker(c10::intrusive_ptr<c10d::Store> store, const Environment& environment,
                       std::chrono::milliseconds timeout)
    : store_(std::move(store)), rank_(environment.rank), timeout_(timeout), device_(gloo_device(environment)) {}

c10::intrusive_ptr<c10d::ProcessGroup> GroupMaker::make(const std::string& name,
                                                        const std::vector<int>& members) const {
  using c10d::ProcessGroup;
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout_);
  options->devices.push_back(device_);
  // The first member tells a group from the others of its kind.
  auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("group/{}/{}", name, members.front()), store_);
  const auto place = std::find(members.begin(), members.end(), rank_);
  const auto rank = static_cast<int>(place - members.begin()), size = static_cast<int>(members.size());
  auto backend = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, std::move(options));
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO, std::move(backend));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  group->setGroupName(fmt::format("{}/{}", name, members.front()));
  return group;
}

std::vector<std::string> gather_texts(c10d::Store& store, const std::string& key, int rank, int world_size,
                                      const std::string& text) {
  store.set(fmt::format("{}/{}", key, rank), text);
  std::vector<std::string> texts;
  for (int other = 0; other < world_size; ++other) {
    texts.push_back(other == rank ? text : store.get_to_str(fmt::format("{}/{}", key, other)));
  }
  return texts;
}

}  // namespace pretrain_gpt
