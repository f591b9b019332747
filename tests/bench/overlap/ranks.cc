#include "tests/bench/overlap/ranks.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace dualpipe::bench {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw std::runtime_error(fmt::format("{} is not set: start this program by bench_overlap", name));
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

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

}  // namespace

Ranks::Ranks()
    : rank_(std::stoi(variable("RANK"))), size_(std::stoi(variable("WORLD_SIZE"))), store_(make_store(rank_ == 0)) {}

Ranks::~Ranks() {
  try {
    barrier();
    store_->add("left", 1);
    while (rank_ == 0 && store_->add("left", 0) < size_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const std::exception&) {  // A peer is gone already; what failed is being reported.
  }
}

ExpertGroup Ranks::make_experts() const {
  return {part_of(store_, fmt::format("experts{}", pipeline_rank())), expert_rank()};
}

c10::intrusive_ptr<c10d::ProcessGroup> Ranks::make_pipeline_group() const {
  using c10d::ProcessGroup;
  const auto store = part_of(store_, fmt::format("pipeline{}", expert_rank()));
  auto group = c10::make_intrusive<ProcessGroup>(store, pipeline_rank(), pipeline_size());
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO,
                    make_gloo(store, "gloo", pipeline_rank(), pipeline_size(), 2));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

void Ranks::barrier() {
  const std::string key = next_key();
  if (store_->add(key, 1) == size_) store_->set(key + "/full", std::string("1"));
  store_->wait({key + "/full"});
}

double Ranks::value_of_rank0(double mine) {
  const std::string key = next_key();
  if (rank_ == 0) store_->set(key, fmt::format("{}", mine));
  return std::stod(store_->get_to_str(key));
}

Milliseconds Ranks::time(const std::function<void()>& body) {
  barrier();
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::steady_clock::now() - start;
}

}  // namespace dualpipe::bench
