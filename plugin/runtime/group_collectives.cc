#include "plugin/runtime/group_collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "plugin/runtime/gloo_threads.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

class GroupTransfer final : public Transfer {
 public:
  GroupTransfer(std::shared_ptr<C10dWaiter> waiter, std::vector<Pending> pending, std::function<void()> after)
      : waiter_(std::move(waiter)), pending_(std::move(pending)), after_(std::move(after)) {}
  ~GroupTransfer() override {
    if (!pending_.empty()) waiter_->keep(std::move(pending_));
  }

  void wait() override {
    for (const Pending& pending : pending_) waiter_->wait(pending);
    pending_.clear();
    if (after_) std::exchange(after_, {})();
  }

 private:
  std::shared_ptr<C10dWaiter> waiter_;
  std::vector<Pending> pending_;
  std::function<void()> after_;  // What makes the result of what has arrived.
};

std::vector<at::Device> devices_of(const c10d::ProcessGroup& group) {
  const auto devices = group.getDeviceTypes();
  if (!devices.empty()) return {devices.begin(), devices.end()};
  throw ScheduleError("parallel_groups",
                      "a group needs a gloo or nccl backend, got one of " + std::to_string(group.getSize()) +
                          " ranks without any; ProcessGroup::setBackend or init_process_group(backend=\"gloo\") gives "
                          "it one");
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

at::Tensor to_tensor(const std::string& bytes, std::int64_t length, at::Device device) {
  at::Tensor tensor = at::zeros({length}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor.to(device);
}

std::string to_bytes(const at::Tensor& tensor, std::int64_t length) {
  const at::Tensor host = tensor.cpu();
  const char* data = static_cast<const char*>(host.const_data_ptr());
  return std::string(data, data + length);
}

struct Gather {
  at::Tensor mine, all;
  std::unique_ptr<Transfer> transfer;
};

Gather start_gather(GroupCollectives& group, at::Tensor mine) {
  at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  auto transfer = group.start_all_gather(all, mine);
  return {std::move(mine), std::move(all), std::move(transfer)};
}

}  // namespace

GroupCollectives::GroupCollectives(c10::intrusive_ptr<c10d::ProcessGroup> group, std::chrono::milliseconds timeout,
                                   std::shared_ptr<FailureChannel> failures)
    : group_(std::move(group)),
      on_host_(std::make_shared<C10dWaiter>(timeout, failures)),
      on_device_(std::make_shared<C10dWaiter>(kNoTimeout, failures)) {
  for (const at::Device device : devices_of(*group_)) {
    if (is_gloo(device)) make_gloo_threads_yield(size());
  }
}

void GroupCollectives::abort(const std::string& why) {
  on_host_->abort(why);
  on_device_->abort(why);
}

at::Device GroupCollectives::device() const {
  const std::vector<at::Device> devices = devices_of(*group_);
  for (const at::Device& device : devices) {
    if (device.is_cpu()) return device;
  }
  return c10::impl::VirtualGuardImpl(devices.front().type()).getDevice();
}

bool GroupCollectives::is_gloo(at::Device device) const {
  return group_->getBackend(device.type())->getBackendName() == "gloo";
}

at::ScalarType GroupCollectives::sum_dtype(at::ScalarType dtype, at::Device device) const {
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  return narrow && is_gloo(device) ? at::kFloat : dtype;
}

template <typename Start>
std::unique_ptr<Transfer> GroupCollectives::start(const at::Tensor& tensor, Start start, std::function<void()> after) {
  const MessageName name{rank(), std::nullopt, Direction::kSend, kCollectiveChannel, 0};
  const std::shared_ptr<C10dWaiter>& waiter = is_gloo(tensor.device()) ? on_host_ : on_device_;
  waiter->throw_if_aborted(name);
  std::vector<Pending> pending;
  if (size() == 1 || tensor.numel() == 0) return std::make_unique<GroupTransfer>(waiter, std::move(pending), nullptr);
  at::NoGradGuard no_grad;
  try {
    pending.push_back({name, start(*group_->getBackend(tensor.device().type()))});
  } catch (const std::exception& error) {
    waiter->fail(name, error);
  }
  return std::make_unique<GroupTransfer>(waiter, std::move(pending), std::move(after));
}

std::unique_ptr<Transfer> GroupCollectives::start_all_reduce_sum(at::Tensor tensor) {
  return start(tensor, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{tensor};
    return backend.allreduce(tensors);
  });
}

std::unique_ptr<Transfer> GroupCollectives::start_reduce_scatter_sum(at::Tensor mine, at::Tensor all) {
  if (size() == 1) mine.copy_(all.view(mine.sizes()));
  if (!is_gloo(mine.device())) {
    return start(mine, [&](c10d::Backend& backend) { return backend.reduce_scatter_single(mine, all); });
  }
  const at::Tensor arrived = at::empty({size(), mine.numel()}, mine.options());
  at::Tensor from = bytes_of(all);
  at::Tensor into = bytes_of(arrived);
  std::vector<std::int64_t> equal_parts;
  const auto exchange = [&](c10d::Backend& backend) {
    return backend.all_to_all_single(into, from, equal_parts, equal_parts);
  };
  return start(mine, exchange, [mine, arrived] { mine.copy_(sum_in_rank_order(arrived.unbind()).view(mine.sizes())); });
}

std::unique_ptr<Transfer> GroupCollectives::start_all_gather(at::Tensor all, at::Tensor mine) {
  if (size() == 1) all.copy_(mine.view(all.sizes()));
  at::Tensor from = bytes_of(mine);
  at::Tensor into = bytes_of(all);
  return start(mine, [&](c10d::Backend& backend) { return backend.all_gather_single(into, from); });
}

void GroupCollectives::all_reduce_sum(at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.contiguous().to(sum_dtype(tensor.scalar_type(), tensor.device()));
  start_all_reduce_sum(dense)->wait();
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

std::vector<std::string> GroupCollectives::all_gather(const std::string& bytes) {
  return gather_over({this}, {bytes}).front();
}

std::vector<std::vector<std::string>> gather_over(const std::vector<GroupCollectives*>& groups,
                                                  const std::vector<std::string>& bytes) {
  std::vector<Gather> lengths;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto length = static_cast<std::int64_t>(bytes[i].size());
    lengths.push_back(start_gather(*groups[i], at::full({1}, length, at::kLong).to(groups[i]->device())));
  }
  std::vector<Gather> texts;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    lengths[i].transfer->wait();
    const std::int64_t longest = std::max<std::int64_t>(1, lengths[i].all.max().item<std::int64_t>());
    texts.push_back(start_gather(*groups[i], to_tensor(bytes[i], longest, groups[i]->device())));
  }
  std::vector<std::vector<std::string>> result(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    texts[i].transfer->wait();
    for (int rank = 0; rank < groups[i]->size(); ++rank) {
      result[i].push_back(to_bytes(texts[i].all[rank], lengths[i].all[rank][0].item<std::int64_t>()));
    }
  }
  return result;
}

}  // namespace dualpipe
