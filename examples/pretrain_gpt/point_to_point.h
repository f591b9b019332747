// examples/pretrain_gpt/point_to_point.h
//
// Asynchronous messages between the ranks of a Gloo group, told apart by tags. Each is noted in the ring of the rank's
// actions.
//
// Nothing is waited for until wait() or complete_sends_until(): a send keeps its tensor alive until then, and a receive
// that was posted must be waited for (a dropped one would leave its link unusable).
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <deque>
#include <string>

#include "examples/pretrain_gpt/failures/action_ring.h"

namespace pretrain_gpt {

// The other end of a message: a rank of the group, and its number in the run.
struct Peer {
  int rank = 0;
  int run_rank = 0;
};

struct PostedMessage {
  at::Tensor tensor;
  c10::intrusive_ptr<c10d::Work> work;
  const char* what;  // For errors.
  int peer;          // A rank of the run.
  ActionRing* ring;
  ActionRing::Id noted;

  // The tensor once it is filled. Throws PeerLost where the message did not come.
  at::Tensor wait();
};

// `action` is its name in the ring, which outlives the message.
PostedMessage post_receive(c10d::ProcessGroup& group, Peer from, int tag, at::IntArrayRef shape, at::ScalarType dtype,
                           ActionRing& ring, std::string action);

// Sends to one peer, in order.
class SendQueue {
 public:
  SendQueue(c10::intrusive_ptr<c10d::ProcessGroup> group, Peer to, ActionRing& ring)
      : group_(std::move(group)), to_(to), ring_(ring) {}

  void send(const at::Tensor& tensor, int tag, std::string action);

  // Waits for the first `count` sends since the last complete_all() and frees their tensors. Returns at once where the
  // peer is known to have received them.
  void complete_until(std::int64_t count);
  void complete_all();

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  Peer to_;
  ActionRing& ring_;
  std::int64_t completed_ = 0;
  std::deque<PostedMessage> pending_;
};

}  // namespace pretrain_gpt
