#include "examples/pretrain_gpt/point_to_point.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "examples/pretrain_gpt/collective.h"

namespace pretrain_gpt {
namespace {

constexpr const char* kFrom = "a message from another rank";
constexpr const char* kTo = "a message to another rank";

}  // namespace

at::Tensor PostedMessage::wait() {
  ring->start(noted);
  wait_for(*work, what, peer);
  ring->done(noted);
  return tensor;
}

PostedMessage post_receive(c10d::ProcessGroup& group, Peer from, int tag, at::IntArrayRef shape, at::ScalarType dtype,
                           ActionRing& ring, std::string action) {
  std::vector<at::Tensor> tensors{at::empty(shape, dtype)};
  const auto bytes = static_cast<std::int64_t>(tensors[0].nbytes());
  const ActionRing::Id noted = ring.post(ActionKind::kReceive, std::move(action), from.run_rank, bytes);
  c10::intrusive_ptr<c10d::Work> work = posted(
      kFrom, [&] { return group.recv(tensors, from.rank, tag); }, from.run_rank);
  return {tensors[0], std::move(work), kFrom, from.run_rank, &ring, noted};
}

void SendQueue::send(const at::Tensor& tensor, int tag, std::string action) {
  std::vector<at::Tensor> tensors{tensor.detach().contiguous()};
  const auto bytes = static_cast<std::int64_t>(tensors[0].nbytes());
  const ActionRing::Id noted = ring_.post(ActionKind::kSend, std::move(action), to_.run_rank, bytes);
  c10::intrusive_ptr<c10d::Work> work = posted(
      kTo, [&] { return group_->send(tensors, to_.rank, tag); }, to_.run_rank);
  pending_.push_back({tensors[0], std::move(work), kTo, to_.run_rank, &ring_, noted});
}

void SendQueue::complete_until(std::int64_t count) {
  for (; completed_ < count && !pending_.empty(); ++completed_) {
    pending_.front().wait();
    pending_.pop_front();
  }
}

void SendQueue::complete_all() {
  complete_until(completed_ + static_cast<std::int64_t>(pending_.size()));
  completed_ = 0;
}

}  // namespace pretrain_gpt
