#include <map>
#include <tuple>
#include <utility>

#include "plugin/runtime/c10d_wire.h"
#include "plugin/runtime/gloo_threads.h"

namespace dualpipe {
namespace {

// A tag is unique among the tensors under way between two ranks in one direction: bit 30, which keeps it apart from the
// host's own small tags, the channel, and a running number that may wrap, since far fewer than 2^27 are ever under way.
constexpr int kTagMark = 1 << 30;
constexpr int kChannelShift = 27;
constexpr std::uint32_t kNumberMask = (1u << kChannelShift) - 1;
static_assert(kCollectiveChannel < 8);

class GlooWire : public C10dWire {
 public:
  explicit GlooWire(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {
    make_gloo_threads_yield(backend_->getSize());
  }

  std::vector<Pending> start(const MessageName& name, const TensorList& tensors) override {
    std::vector<Pending> started;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() > 0) {
        started.push_back({name, start_one(name, tensor)});
      }
    }
    return started;
  }

  // Point to point, unlike the backend's own collectives: these can be aborted, and leave the order of sums to us.
  std::vector<Pending> gather(const at::Tensor& mine, const TensorList& all) override {
    std::vector<Pending> started;
    for (int peer = 0; peer < backend_->getSize(); ++peer) {
      if (peer == backend_->getRank()) {
        all[peer].copy_(mine);
        continue;
      }
      append(started, start(collective(peer, Direction::kReceive), {all[peer]}));
      append(started, start(collective(peer, Direction::kSend), {mine}));
    }
    return started;
  }

  std::vector<Pending> broadcast(const at::Tensor& tensor, int root) override {
    if (root != backend_->getRank()) {
      return start(collective(root, Direction::kReceive), {tensor});
    }
    std::vector<Pending> started;
    for (int peer = 0; peer < backend_->getSize(); ++peer) {
      if (peer != root) {
        append(started, start(collective(peer, Direction::kSend), {tensor}));
      }
    }
    return started;
  }

  void abort() override {}
  at::Device device() const override { return at::kCPU; }

 private:
  using LineKey = std::tuple<int, Direction, int>;  // Peer, direction, channel.

  MessageName collective(int peer, Direction direction) {
    return {backend_->getRank(), peer, direction, kCollectiveChannel, 0};
  }

  c10::intrusive_ptr<c10d::Work> start_one(const MessageName& name, const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors{tensor};
    const int tag = next_tag(name);
    return name.direction == Direction::kSend ? backend_->send(tensors, *name.peer, tag)
                                              : backend_->recv(tensors, *name.peer, tag);
  }

  int next_tag(const MessageName& name) {
    const std::uint32_t number = numbers_[{*name.peer, name.direction, name.channel}]++ & kNumberMask;
    return kTagMark | name.channel << kChannelShift | static_cast<int>(number);
  }

  static void append(std::vector<Pending>& to, std::vector<Pending> more) {
    to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::map<LineKey, std::uint32_t> numbers_;
};

}  // namespace

std::unique_ptr<C10dWire> make_gloo_wire(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<GlooWire>(std::move(backend));
}

}  // namespace dualpipe
