#include "tests/bench/overlap/ranks.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace dualpipe::bench {
namespace {

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

}  // namespace

Ranks::Ranks() : Ranks(meet()) {}

Ranks::Ranks(const Meeting& meeting) : rank_(meeting.rank), size_(meeting.size), store_(meeting.store) {}

Ranks::~Ranks() { leave({rank_, size_, store_}); }

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
