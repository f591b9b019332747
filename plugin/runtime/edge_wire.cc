#include <algorithm>
#include <map>
#include <utility>

#include "plugin/runtime/c10d_wire.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class EdgeWire : public C10dWire {
 public:
  EdgeWire(c10::intrusive_ptr<c10d::Backend> backend, std::vector<EdgeGroup> groups, at::Device device)
      : backend_(std::move(backend)), device_(device) {
    for (EdgeGroup& group : groups) {
      groups_.emplace(group.link, std::move(group.group));
    }
  }

  // The tensors of one message are one coalesced group where the backend can do that, and then one Work.
  std::vector<Pending> start(const MessageName& name, const TensorList& tensors) override {
    c10d::Backend& group = group_of(name);
    const auto moved = std::count_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.numel() > 0; });
    const bool coalesced = moved > 1 && group.supportsCoalescing();
    if (coalesced) {
      group.startCoalescing();
    }
    std::vector<Pending> started;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() > 0) {
        started.push_back({name, start_one(group, name, tensor)});
      }
    }
    if (coalesced) {
      started.assign(1, Pending{name, group.endCoalescing()});
    }
    return started;
  }

  std::vector<Pending> gather(const at::Tensor& mine, const TensorList& all) override {
    std::vector<TensorList> outputs{all};
    TensorList inputs{mine};
    return {{collective(), backend_->allgather(outputs, inputs)}};
  }

  std::vector<Pending> broadcast(const at::Tensor& tensor, int root) override {
    TensorList tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return {{collective(), backend_->broadcast(tensors, options)}};
  }

  // NCCL's kernels wait on the device for a peer that may never come; they end with their communicator alone.
  void abort() override {
    for (const auto& [link, group] : groups_) {
      if (group->getBackendName() == "nccl") {
        group->abort();
      }
    }
  }

  at::Device device() const override { return device_; }

 private:
  c10d::Backend& group_of(const MessageName& name) {
    const bool sending = name.direction == Direction::kSend;
    const Link link{sending ? name.rank : *name.peer, sending ? *name.peer : name.rank, name.channel};
    const auto found = groups_.find(link);
    if (found == groups_.end()) {
      check(false, "a message from rank " + link.to_string() + ", which is not among the transport's edges");
    }
    return *found->second;
  }

  static WorkPtr start_one(c10d::Backend& group, const MessageName& name, const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors{tensor};
    return name.direction == Direction::kSend ? group.send(tensors, 1, 0) : group.recv(tensors, 0, 0);
  }

  MessageName collective() const {
    return {backend_->getRank(), std::nullopt, Direction::kReceive, kCollectiveChannel, 0};
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::map<Link, c10::intrusive_ptr<c10d::Backend>> groups_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<C10dWire> make_edge_wire(c10::intrusive_ptr<c10d::Backend> backend, std::vector<EdgeGroup> groups,
                                         at::Device device) {
  return std::make_unique<EdgeWire>(std::move(backend), std::move(groups), device);
}

}  // namespace dualpipe
