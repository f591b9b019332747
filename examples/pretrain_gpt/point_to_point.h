// examples/pretrain_gpt/point_to_point.h
//
// Asynchronous messages between the ranks of a Gloo group, told apart by tags.
//
// Nothing is waited for until wait() or complete_sends_until(): a send keeps its tensor alive until then, and a receive
// that was posted must be waited for (a dropped one would leave its link unusable).
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <deque>

namespace pretrain_gpt {

struct PostedMessage {
  at::Tensor tensor;
  c10::intrusive_ptr<c10d::Work> work;

  // The tensor once it is filled. Throws where the message did not come.
  at::Tensor wait();
};

PostedMessage post_receive(c10d::ProcessGroup& group, int from, int tag, at::IntArrayRef shape, at::ScalarType dtype);

// Sends to one peer, in order.
class SendQueue {
 public:
  SendQueue(c10::intrusive_ptr<c10d::ProcessGroup> group, int to) : group_(std::move(group)), to_(to) {}

  void send(const at::Tensor& tensor, int tag);

  // Waits for the first `count` sends since the last complete_all() and frees their tensors. Returns at once where the
  // peer is known to have received them.
  void complete_until(std::int64_t count);
  void complete_all();

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int to_;
  std::int64_t completed_ = 0;
  std::deque<PostedMessage> pending_;
};

}  // namespace pretrain_gpt
