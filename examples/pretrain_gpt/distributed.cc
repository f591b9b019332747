#include "examples/pretrain_gpt/distributed.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "examples/pretrain_gpt/failures/exit_code.h"
#include "examples/pretrain_gpt/failures/within.h"
#include "examples/pretrain_gpt/sockets.h"

namespace pretrain_gpt {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Threads begun while it lives do not take the processor from a running one when they wake up (the policy SCHED_BATCH).
// Gloo's would take it from other ranks in the middle of a send, with a lock that the own thread of those then spins on
// (Pair::handleEvents in gloo/transport/tcp/pair.cc).
class YieldingThreads {
 public:
  YieldingThreads() : given_(sched_getscheduler(0)) {
    is_set_ = (given_ & ~SCHED_RESET_ON_FORK) == SCHED_OTHER && set(given_ | SCHED_BATCH);
  }
  ~YieldingThreads() {
    if (is_set_) set(given_);
  }
  YieldingThreads(const YieldingThreads&) = delete;
  YieldingThreads& operator=(const YieldingThreads&) = delete;

 private:
  static bool set(int policy) {
    const sched_param priority{};
    return sched_setscheduler(0, policy, &priority) == 0;
  }

  int given_;
  bool is_set_ = false;
};

std::shared_ptr<gloo::transport::Device> gloo_device(const Environment& environment) {
  using c10d::ProcessGroupGloo;
  std::optional<YieldingThreads> yielding;
  if (gloo_threads_yield(environment)) yielding.emplace();
  if (const auto interface = process_variable("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  if (is_on_one_machine(environment)) {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return ProcessGroupGloo::createDefaultDevice();
}

// For an answer of who listens. A store that other machines reach may ask servers of names about each of them.
constexpr std::chrono::milliseconds kStorePatience{4000}, kDistantPatience{30000};
constexpr std::chrono::milliseconds kLastTry{1000};  // Where nobody does: the client says why.

[[noreturn]] void refuse_port(const Environment& environment, const std::string& rule, const std::string& given) {
  throw RunError(ExitCode::kStart, fmt::format("[MASTER_PORT] {}, got {}:{}: {}; for example MASTER_PORT={}", rule,
                                               environment.master_address, environment.master_port, given,
                                               environment.master_port % 60000 + 1025));
}

class StoreBoard : public Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string set_first(const std::string& key, const std::string& value) override {
    return store_->compareSet(key, "", value);
  }
  std::optional<std::string> get(const std::string& key) override {
    return store_->check({key}) ? std::optional(store_->get_to_str(key)) : std::nullopt;
  }
  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(key, value); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Where rank 0 hosts the store for this machine alone. LibTorch's own socket is of IPv6 on every interface, to which
// 127.0.0.1 comes in a form that /etc/hosts does not know: the store's one thread would ask a server of names who each
// client is.
std::optional<std::string> loopback_of(const Environment& environment) {
  const bool is_our_own = is_on_one_machine(environment) && !environment.launcher_hosts_store;
  return is_our_own ? loopback_address(environment.master_address) : std::nullopt;
}

std::string address_of(const Environment& environment) {
  return loopback_of(environment).value_or(environment.master_address);
}

StorePtr open_store(const Environment& environment, bool as_host, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = as_host;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    const std::string address = address_of(environment);
    if (as_host && loopback_of(environment)) {
      options.masterListenFd = bind_to(address, environment.master_port).release();
    }
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  } catch (const std::exception& error) {
    refuse_port(environment, as_host ? "must be a free port" : "and MASTER_ADDR must lead to rank 0",
                first_line(error.what()));
  }
}

// Until there is somebody, or `end`. A store's client waits longer and longer between two tries, so it is not made
// before.
void wait_for_listener(const Environment& environment, std::chrono::steady_clock::time_point end) {
  while (!accepts_connections(address_of(environment), environment.master_port) &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// A client waits for the answer of what it is connected to for ever: on a thread, and left behind where that is no
// store.
StorePtr open_and_watch(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  wait_for_listener(environment, end);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  auto store = aside([environment, patience = std::max(left, kLastTry)] {
    return open_store(environment, /*as_host=*/false, patience);
  });
  const auto patience = loopback_of(environment) ? kStorePatience : std::clamp(left, kStorePatience, kDistantPatience);
  const auto bound = patience + environment.world_size * std::chrono::milliseconds(5);
  if (store.wait_for(bound) != std::future_status::ready) {
    refuse_port(environment, "must be the port of rank 0's store", "what listens there is no such store");
  }
  return store.get();
}

// Keys of another attempt or run are not ours.
StorePtr prefixed(StorePtr store, const Environment& environment, std::chrono::milliseconds timeout) {
  store->setTimeout(timeout);
  const std::string run = environment.run_id.empty() ? "" : "/" + environment.run_id;
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("pretrain_gpt{}/{}", run, environment.attempt),
                                                std::move(store));
}

StorePtr connect_to(const Environment& environment, std::chrono::milliseconds timeout) {
  return prefixed(open_store(environment, /*as_host=*/false, timeout), environment, timeout);
}

}  // namespace

Rendezvous::Rendezvous(const Environment& environment, std::chrono::milliseconds timeout)
    : environment_(environment),
      timeout_(timeout),
      is_host_(environment.rank == 0 && environment.world_size > 1 && !environment.launcher_hosts_store) {
  StorePtr store;
  if (environment.world_size == 1) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = is_host_ ? open_store(environment, /*as_host=*/true, timeout) : open_and_watch(environment, timeout);
  }
  store_ = prefixed(std::move(store), environment, timeout);
}

c10::intrusive_ptr<c10d::Store> Rendezvous::connect(std::optional<std::chrono::milliseconds> timeout) const {
  return environment_.world_size == 1 ? store_ : connect_to(environment_, timeout.value_or(timeout_));
}

OpenBoard Rendezvous::boards() const { return boards_at(environment_); }

OpenBoard boards_at(const Environment& environment) {
  return [environment](std::chrono::milliseconds timeout) {
    return std::make_unique<StoreBoard>(connect_to(environment, timeout));
  };
}

bool gloo_threads_yield(const Environment& environment) {
  return environment.gloo_threads_yield.value_or(environment.local_world_size > sysconf(_SC_NPROCESSORS_ONLN));
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

std::chrono::milliseconds transport_timeout(const Config& config) {
  constexpr std::chrono::seconds kBehindTheWatch{10};
  return std::chrono::seconds(std::max(config.timeout_s, config.step_patience())) + kBehindTheWatch;
}

std::vector<std::string> gather_texts(c10d::Store& store, const std::string& key, int rank, int world_size,
                                      const std::string& text) {
  store.set(fmt::format("{}/{}", key, rank), text);
  std::vector<std::string> texts;
  texts.reserve(world_size);
  for (int other = 0; other < world_size; ++other) {
    texts.push_back(other == rank ? text : store.get_to_str(fmt::format("{}/{}", key, other)));
  }
  return texts;
}

}  // namespace pretrain_gpt
