#include "plugin/runtime/c10d_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "plugin/runtime/c10d_waiter.h"
#include "plugin/runtime/c10d_wire.h"
#include "plugin/runtime/device_claim.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr std::string_view kOrigin = "process_group";
constexpr std::int64_t kReducePieceBytes = 8 << 20;  // Of one rank, so that a sum needs little memory.

class C10dTransfer : public Transfer {
 public:
  C10dTransfer(std::shared_ptr<C10dWaiter> waiter, std::vector<Pending> pending)
      : waiter_(std::move(waiter)), pending_(std::move(pending)) {}

  ~C10dTransfer() override {
    if (!pending_.empty()) {
      waiter_->keep(std::move(pending_));
    }
  }

  void wait() override {
    for (const Pending& pending : pending_) {
      waiter_->wait(pending);
    }
    pending_.clear();
  }

 private:
  std::shared_ptr<C10dWaiter> waiter_;
  std::vector<Pending> pending_;
};

class C10dTransport : public Transport {
 public:
  C10dTransport(int rank, int size, std::unique_ptr<C10dWire> wire, std::shared_ptr<C10dWaiter> waiter)
      : rank_(rank), size_(size), wire_(std::move(wire)), waiter_(std::move(waiter)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  at::Device device() const override { return wire_->device(); }

  std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) override {
    return start(peer, Direction::kSend, channel, tensors);
  }
  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) override {
    return start(peer, Direction::kReceive, channel, into);
  }

  void all_reduce_sum(at::Tensor& tensor) override {
    at::NoGradGuard no_grad;
    const at::Tensor flat = tensor.contiguous().view(-1);
    const std::int64_t piece = std::max<std::int64_t>(1, kReducePieceBytes / flat.element_size());
    for (std::int64_t begin = 0; begin < flat.numel(); begin += piece) {
      const at::Tensor part = flat.narrow(0, begin, std::min(piece, flat.numel() - begin));
      part.copy_(sum_in_rank_order(gather(part)));
    }
    if (!tensor.is_contiguous()) {
      tensor.copy_(flat.view(tensor.sizes()));
    }
  }

  std::vector<std::string> all_gather(const std::string& bytes) override {
    const std::vector<std::int64_t> lengths = gather_lengths(static_cast<std::int64_t>(bytes.size()));
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    at::Tensor mine = at::zeros({longest}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(mine.mutable_data_ptr()));
    std::vector<std::string> result;
    for (const at::Tensor& theirs : gather(mine.to(device()))) {
      const at::Tensor host = theirs.cpu();
      const char* data = static_cast<const char*>(host.const_data_ptr());
      result.emplace_back(data, data + lengths[result.size()]);
    }
    return result;
  }

  void broadcast(at::Tensor& tensor, int root) override {
    at::NoGradGuard no_grad;
    const at::Tensor dense = tensor.contiguous();
    finish([&] { return wire_->broadcast(dense, root); });
    if (!tensor.is_contiguous()) {
      tensor.copy_(dense);
    }
  }

  void abort(const std::string& why) override {
    waiter_->abort(why);
    wire_->abort();
  }

 private:
  using LineKey = std::tuple<int, Direction, int>;  // Peer, direction, channel.

  std::unique_ptr<Transfer> start(int peer, Direction direction, int channel, const TensorList& tensors) {
    MessageName name{rank_, peer, direction, channel, 0};
    check_message(name, size_, tensors);
    name.number = numbers_[{peer, direction, channel}]++;
    return start_pending(name, [&] { return wire_->start(name, tensors); });
  }

  template <typename Start>
  std::unique_ptr<Transfer> start_pending(const MessageName& name, Start start) {
    waiter_->throw_if_aborted(name);
    try {
      return std::make_unique<C10dTransfer>(waiter_, start());
    } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) {
      waiter_->fail(name, error);
    }
  }

  template <typename Start>
  void finish(Start start) {
    start_pending({rank_, std::nullopt, Direction::kReceive, kCollectiveChannel, 0}, start)->wait();
  }

  TensorList gather(const at::Tensor& mine) {
    TensorList all(size_);
    for (at::Tensor& theirs : all) {
      theirs = at::empty_like(mine);
    }
    finish([&] { return wire_->gather(mine, all); });
    return all;
  }

  std::vector<std::int64_t> gather_lengths(std::int64_t mine) {
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& theirs : gather(at::full({1}, mine, at::kLong).to(device()))) {
      lengths.push_back(theirs.item<std::int64_t>());
    }
    return lengths;
  }

  const int rank_;
  const int size_;
  std::unique_ptr<C10dWire> wire_;
  std::shared_ptr<C10dWaiter> waiter_;
  std::map<LineKey, std::int64_t> numbers_;
};

c10::DeviceType device_type_of(const c10d::ProcessGroup& group, const C10dTransportOptions& options) {
  if (options.device) {
    return *options.device;
  }
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  if (devices.empty()) {
    throw ScheduleError(kOrigin,
                        "the group needs a gloo or nccl backend, got none; "
                        "ProcessGroup::setBackend or init_process_group(backend=\"gloo\") gives it one");
  }
  const bool has_cpu = std::find(devices.begin(), devices.end(), at::Device(at::kCPU)) != devices.end();
  return has_cpu ? at::kCPU : devices.front().type();
}

std::vector<Link> links_of(const C10dTransportOptions& options) {
  std::vector<Link> links;
  for (const auto& [from, to] : options.edges) {
    links.push_back({from, to, 0});
  }
  for (const auto& [from, to] : options.mirror_edges) {
    links.push_back({from, to, 1});
    links.push_back({from, to, 2});
  }
  return links;
}

// Transports of one group do not share keys: each rank counts those that it has made.
c10::intrusive_ptr<c10d::Store> store_for_edges(const c10d::ProcessGroup& group, int rank) {
  const auto store = group.getStore();
  if (!store) {
    throw ScheduleError(kOrigin,
                        "an nccl group needs the store that it was made with, got a group without one; "
                        "c10d::ProcessGroup(store, rank, size) keeps it");
  }
  const auto number = store->add("dualpipe/transports/" + std::to_string(rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("dualpipe/transport" + std::to_string(number), store);
}

// Collective over the store.
void check_devices(c10d::Store& store, int rank, int size, at::Device device) {
  const auto key = [](int of) { return "device/" + std::to_string(of); };
  store.set(key(rank), encode(claim_device(device.index(), c10::impl::VirtualGuardImpl(device.type()).deviceCount())));
  std::vector<DeviceClaim> claims;
  for (int other = 0; other < size; ++other) claims.push_back(decode_claim(store.get_to_str(key(other))));
  check_claims(claims);
}

std::unique_ptr<C10dWire> make_wire(const c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Backend>& backend,
                                    c10::DeviceType type, const C10dTransportOptions& options) {
  const bool nccl = backend->getBackendName() == "nccl";
  if (!nccl && !options.make_edge_groups) {
    return make_gloo_wire(backend);
  }
  const int rank = backend->getRank();
  const auto store = store_for_edges(group, rank);
  const at::Device device = c10::impl::VirtualGuardImpl(type).getDevice();
  if (nccl) check_devices(*store, rank, backend->getSize(), device);
  auto groups = options.make_edge_groups
                    ? options.make_edge_groups(store, rank, links_of(options))
                    : make_nccl_edge_groups(store, rank, links_of(options), options.timeout, options.nccl_max_ctas);
  return make_edge_wire(backend, std::move(groups), device);
}

}  // namespace

std::shared_ptr<Transport> make_c10d_transport(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               const C10dTransportOptions& options) {
  const c10::DeviceType type = device_type_of(*group, options);
  const auto backend = group->getBackend(type);
  const std::string name = backend->getBackendName();
  if (name != "gloo" && name != "nccl") {
    throw ScheduleError(kOrigin, "the group's backend must be gloo or nccl, got " + name +
                                     "; init_process_group(backend=\"gloo\") works on the CPU");
  }
  // NCCL waits on the device: a timeout here would block the host until the message has arrived.
  const std::chrono::milliseconds timeout = name == "nccl" ? kNoTimeout : options.timeout;
  auto waiter = std::make_shared<C10dWaiter>(timeout, options.failures);
  return std::make_shared<C10dTransport>(backend->getRank(), backend->getSize(),
                                         make_wire(*group, backend, type, options), std::move(waiter));
}

}  // namespace dualpipe
