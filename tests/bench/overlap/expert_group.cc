#include "tests/bench/overlap/expert_group.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace dualpipe::bench {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class Exchange : public PendingExchange {
 public:
  Exchange(at::Tensor mine, std::function<at::Tensor(const at::Tensor&)> then)
      : mine_(std::move(mine)), theirs_(at::empty_like(mine_)), none_(at::empty({0}, mine_.options())), then_(then) {}

  // `group` moves values from `sender` to the other rank.
  void start(c10d::Backend& group, int rank, int sender) {
    std::vector<std::int64_t> nothing{0, 0}, all{0, 0};
    all[1 - rank] = mine_.numel();
    at::Tensor& in = sender == rank ? mine_ : none_;
    at::Tensor& out = sender == rank ? none_ : theirs_;
    works_.push_back(group.alltoall_base(out, in, sender == rank ? nothing : all, sender == rank ? all : nothing));
  }

  TensorList wait() override {
    for (const WorkPointer& work : works_) {
      if (!work->wait()) throw std::runtime_error("an all-to-all was aborted");
    }
    return {then_ ? then_(theirs_) : theirs_};
  }

 private:
  at::Tensor mine_, theirs_, none_;
  std::function<at::Tensor(const at::Tensor&)> then_;
  std::vector<WorkPointer> works_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                            int rank, int size, int threads) {
  using c10d::ProcessGroupGloo;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (!interface) throw std::runtime_error("GLOO_SOCKET_IFNAME must name a network interface; for example eth0");
  auto options = ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  options->threads = threads;
  return c10::make_intrusive<ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size,
                                               options);
}

ExpertGroup::ExpertGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank)
    : rank_(rank), from_{make_gloo(store, "from0", rank, 2, 1), make_gloo(store, "from1", rank, 2, 1)} {}

std::unique_ptr<PendingExchange> ExpertGroup::start(at::Tensor mine,
                                                    std::function<at::Tensor(const at::Tensor&)> then) {
  auto exchange = std::make_unique<Exchange>(mine.contiguous(), std::move(then));
  for (int sender : {0, 1}) exchange->start(*from_[sender], rank_, sender);
  return exchange;
}

}  // namespace dualpipe::bench
