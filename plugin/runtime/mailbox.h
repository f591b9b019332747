// plugin/runtime/mailbox.h
//
// The pipeline's messages on one rank: activations one way, their gradients the other. Between the executor, which
// speaks of stages and micro-batches, and the transport, which moves tensors.
//
// Shapes. An activation's envelope goes ahead of the first message of a boundary, and is the agreement from then on: a
// later difference is refused by the sender, before anything moves. With `variable_seq_lengths` an envelope goes ahead
// of every activation and anything may change. A receive whose shapes are not known yet posts its envelope alone; later
// receives of the same edge queue up behind it, so that an edge's messages always match in the sender's order. Training
// and evaluation agree separately, since their gradient flags differ. Gradients need no envelope: they have the shapes
// of the activations that this rank sent.
//
// Everything pending is a member, so an exception leaves it alive.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/runtime/envelope.h"
#include "plugin/runtime/ring_log.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/runtime/transport.h"
#include "plugin/schedule/action.h"
#include "plugin/schedule/placement.h"

namespace dualpipe {

class Mailbox {
 public:
  // Every message goes into `log`.
  Mailbox(std::shared_ptr<Transport> transport, Placement placement, bool variable_seq_lengths,
          std::shared_ptr<RingLog> log);

  // Chooses the agreement that F messages go by.
  void set_training(bool training) { training_ = training; }

  // SEND_F of (stage, micro-batch): outputs may be views, non-contiguous or undefined. Throws ScheduleError where they
  // differ from what was agreed.
  void send_forward(int stage, int micro_batch, const TensorList& outputs);
  // SEND_B: one gradient per input of the stage, in the order of its inputs; undefined ones of inputs that need a
  // gradient are sent as zeros. Throws ScheduleError where one has not the shape and dtype of its input.
  void send_backward(int stage, int micro_batch, const TensorList& input_grads, const TensorList& inputs);
  // RECV_F, RECV_B: posts the receive, or its envelope.
  void post(const Op& recv);
  // What RECV_F of (stage, micro-batch) brought: the stage's inputs, as leaves that require grad where the sender's
  // tensors did. Waits.
  TensorList take_forward(int stage, int micro_batch);
  // What RECV_B brought: one gradient per output of the stage, undefined for outputs that need none. Waits.
  TensorList take_backward(int stage, int micro_batch);
  // WAIT_SEND: the send is known to be done (or is waited for), and what it kept alive is freed.
  void settle(const Op& wait_send);

  // Nothing posted, nothing unsettled.
  bool idle() const;
  std::size_t messages_sent() const { return messages_sent_; }
  std::size_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Incoming {
    Op op;
    TensorList envelope;  // The buffer of a posted envelope.
    std::unique_ptr<Transfer> envelope_transfer;
    BoundarySpec own_spec;                 // Once known, where shapes may differ.
    const BoundarySpec* agreed = nullptr;  // Once known, elsewhere: what messages of its boundary look like.
    const BoundarySpec& spec() const { return agreed ? *agreed : own_spec; }
    TensorList payload;
    std::unique_ptr<Transfer> transfer;  // Null where the payload has no tensors.
    RingLog::Id logged = 0;
  };
  struct Outgoing {
    std::unique_ptr<Transfer> transfer;
    RingLog::Id logged = 0;
  };
  using Edge = std::deque<Op>;  // Receives from one peer whose payload is not posted yet, in the sender's order.

  int sender_of(const Op& recv) const;
  std::map<int, BoundarySpec>& agreements() { return training_ ? agreed_training_ : agreed_evaluation_; }
  bool knows_shapes(const Op& recv);
  void post_envelope(Incoming& incoming, int peer);
  void read_envelope(Incoming& incoming, int peer);
  void post_payload(Incoming& incoming, int peer);
  void resolve(const Op& recv, int peer);
  Incoming take(const Op& recv);
  void keep(const Op& wait_send, int peer, TensorList tensors);
  void send_envelope(const Op& wait_send, int peer, const BoundarySpec& spec);

  std::shared_ptr<Transport> transport_;
  Placement placement_;
  bool variable_;
  bool training_ = true;
  std::map<int, BoundarySpec> agreed_training_;    // By stage, of messages in and out of it: +stage for inputs,
  std::map<int, BoundarySpec> agreed_evaluation_;  // ~stage for outputs.
  // By (stage, micro-batch), where shapes may differ: what its gradients look like.
  std::map<std::pair<int, int>, BoundarySpec> sent_;
  std::map<Op, Incoming> incoming_;
  std::map<int, Edge> unresolved_;  // By peer.
  std::map<Op, std::vector<Outgoing>> unsettled_;
  std::shared_ptr<RingLog> log_;
  std::size_t messages_sent_ = 0;
  std::size_t bytes_sent_ = 0;
};

}  // namespace dualpipe
