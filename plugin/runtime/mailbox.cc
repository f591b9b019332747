#include "plugin/runtime/mailbox.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 0;

Op wait_for(Kind send, int stage, int micro_batch) {
  return make_op(stage, send == Kind::kSendForward ? Kind::kWaitSendForward : Kind::kWaitSendBackward, micro_batch);
}

Op send_of(const Op& wait_send) {
  const bool forward = wait_send.kind == Kind::kWaitSendForward;
  return make_op(wait_send.stage, forward ? Kind::kSendForward : Kind::kSendBackward, wait_send.micro_batch);
}

std::size_t bytes_of(const TensorList& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Without the graph that it is in. Most are as they have to be: nothing is dispatched for them.
at::Tensor plain(const at::Tensor& tensor) {
  at::Tensor values = tensor.requires_grad() ? tensor.variable_data() : tensor;
  if (values.is_contiguous() && !values.is_conj() && !values.is_neg()) return values;
  return values.detach().resolve_conj().resolve_neg().contiguous();
}

TensorList contiguous(const TensorList& tensors) {
  TensorList ready;
  ready.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) ready.push_back(plain(tensor));
  }
  return ready;
}

// A receiver would not survive a message of another length.
void require_fit(const at::Tensor& gradient, const at::Tensor& input, int stage, int micro_batch, std::size_t index) {
  if (gradient.sizes() == input.sizes() && gradient.scalar_type() == input.scalar_type()) return;
  throw ScheduleError(fmt::format("stage {}, micro-batch {}", stage, micro_batch),
                      fmt::format("the gradient of input {} must be {}, got {}", index,
                                  to_string(spec_of({input.detach()})[0]), to_string(spec_of({gradient.detach()})[0])));
}

at::Tensor words_tensor(const std::vector<std::int64_t>& words, std::size_t begin, std::size_t length, at::Device to) {
  at::Tensor tensor = at::zeros({static_cast<std::int64_t>(length)}, at::kLong);
  std::copy(words.begin() + static_cast<std::ptrdiff_t>(begin),
            words.begin() + static_cast<std::ptrdiff_t>(std::min(begin + length, words.size())),
            tensor.data_ptr<std::int64_t>());
  return tensor.to(to);
}

void append_words(std::vector<std::int64_t>& words, const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  const std::int64_t* data = host.data_ptr<std::int64_t>();
  words.insert(words.end(), data, data + host.numel());
}

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Transport> transport, Placement placement, bool variable_seq_lengths,
                 std::shared_ptr<RingLog> log)
    : transport_(std::move(transport)),
      placement_(std::move(placement)),
      variable_(variable_seq_lengths),
      log_(std::move(log)) {}

int Mailbox::sender_of(const Op& recv) const {
  const int from = recv.kind == Kind::kRecvForward ? recv.stage - 1 : recv.stage + 1;
  return placement_.rank_of(from, recv.micro_batch);
}

void Mailbox::keep(const Op& wait_send, int peer, TensorList tensors) {
  if (tensors.empty()) return;
  const std::size_t bytes = bytes_of(tensors);
  bytes_sent_ += bytes;
  ++messages_sent_;
  const RingLog::Id logged = log_->post(RingKind::kSend, to_string(send_of(wait_send)), peer, bytes);
  unsettled_[wait_send].push_back({transport_->send(peer, kChannel, tensors), logged});
}

void Mailbox::send_envelope(const Op& wait_send, int peer, const BoundarySpec& spec) {
  const std::vector<std::int64_t> words = encode(spec);
  keep(wait_send, peer, {words_tensor(words, 0, kEnvelopeWords, transport_->device())});
  if (words.size() > kEnvelopeWords) {
    keep(wait_send, peer, {words_tensor(words, kEnvelopeWords, words.size() - kEnvelopeWords, transport_->device())});
  }
}

void Mailbox::send_forward(int stage, int micro_batch, const TensorList& outputs) {
  const Op wait_send = wait_for(Kind::kSendForward, stage, micro_batch);
  const int peer = placement_.rank_of(stage + 1, micro_batch);
  const auto agreed = agreements().find(~stage);
  if (variable_ || agreed == agreements().end()) {
    BoundarySpec spec = spec_of(outputs);
    send_envelope(wait_send, peer, spec);
    if (!variable_) {
      agreements()[~stage] = std::move(spec);
    } else if (training_) {
      sent_[{stage, micro_batch}] = std::move(spec);
    }
  } else if (!fits(agreed->second, outputs)) {
    throw ScheduleError(
        fmt::format("stage {} on rank {} to stage {} on rank {}", stage, transport_->rank(), stage + 1, peer),
        fmt::format("micro-batch {} must cross as the first one did; {}; set variable_seq_lengths: true to let shapes "
                    "change",
                    micro_batch, *difference(agreed->second, spec_of(outputs))));
  }
  keep(wait_send, peer, contiguous(outputs));
}

void Mailbox::send_backward(int stage, int micro_batch, const TensorList& input_grads, const TensorList& inputs) {
  TensorList gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    gradients.push_back(input_grads[i].defined() ? input_grads[i] : at::zeros_like(inputs[i]));
    require_fit(gradients.back(), inputs[i], stage, micro_batch, i);
  }
  keep(wait_for(Kind::kSendBackward, stage, micro_batch), placement_.rank_of(stage - 1, micro_batch),
       contiguous(gradients));
}

bool Mailbox::knows_shapes(const Op& recv) {
  if (recv.kind == Kind::kRecvBackward) return true;
  return !variable_ && agreements().contains(recv.stage);
}

void Mailbox::post_envelope(Incoming& incoming, int peer) {
  incoming.envelope = {at::empty({kEnvelopeWords}, at::TensorOptions().dtype(at::kLong).device(transport_->device()))};
  incoming.envelope_transfer = transport_->receive(peer, kChannel, incoming.envelope);
}

void Mailbox::read_envelope(Incoming& incoming, int peer) {
  incoming.envelope_transfer->wait();
  std::vector<std::int64_t> words;
  append_words(words, incoming.envelope[0]);
  const std::int64_t missing = words[0] + 1 - kEnvelopeWords;
  if (missing > 0) {
    incoming.envelope = {at::empty({missing}, incoming.envelope[0].options())};
    incoming.envelope_transfer = transport_->receive(peer, kChannel, incoming.envelope);
    incoming.envelope_transfer->wait();
    append_words(words, incoming.envelope[0]);
  }
  incoming.envelope_transfer.reset();
  incoming.envelope.clear();
  incoming.own_spec = decode(words);
  if (!variable_) agreements()[incoming.op.stage] = incoming.own_spec;
}

void Mailbox::post_payload(Incoming& incoming, int peer) {
  const bool backward = incoming.op.kind == Kind::kRecvBackward;
  const int stage = incoming.op.stage;
  if (!variable_) {
    incoming.agreed = &agreements().at(backward ? ~stage : stage);
  } else if (backward) {
    auto sent = sent_.extract({stage, incoming.op.micro_batch});
    check(!sent.empty(), "gradients come of activations that this rank has sent");
    incoming.own_spec = std::move(sent.mapped());
  }
  incoming.payload = allocate(incoming.spec(), transport_->device(), backward);
  log_->set_bytes(incoming.logged, static_cast<std::int64_t>(bytes_of(incoming.payload)));
  if (!incoming.payload.empty()) incoming.transfer = transport_->receive(peer, kChannel, incoming.payload);
}

void Mailbox::post(const Op& recv) {
  Incoming& incoming = incoming_[recv];
  check(incoming.transfer == nullptr && incoming.envelope_transfer == nullptr, "a receive is posted once");
  incoming.op = recv;
  const int peer = sender_of(recv);
  incoming.logged = log_->post(RingKind::kReceive, to_string(recv), peer);
  Edge& queue = unresolved_[peer];
  if (queue.empty() && knows_shapes(recv)) return post_payload(incoming, peer);
  if (queue.empty()) post_envelope(incoming, peer);
  queue.push_back(recv);
}

// Gives every queued receive of the edge up to `recv` its shapes and posts its payload, in order.
void Mailbox::resolve(const Op& recv, int peer) {
  Edge& queue = unresolved_[peer];
  while (std::find(queue.begin(), queue.end(), recv) != queue.end()) {
    Incoming& front = incoming_.at(queue.front());
    if (!knows_shapes(front.op)) {
      if (!front.envelope_transfer) post_envelope(front, peer);
      read_envelope(front, peer);
    }
    post_payload(front, peer);
    queue.pop_front();
  }
  for (; !queue.empty() && knows_shapes(queue.front()); queue.pop_front()) {
    post_payload(incoming_.at(queue.front()), peer);
  }
  if (queue.empty()) return;
  Incoming& next = incoming_.at(queue.front());
  if (!next.envelope_transfer) post_envelope(next, peer);
}

Mailbox::Incoming Mailbox::take(const Op& recv) {
  Incoming& incoming = incoming_.at(recv);
  log_->start(incoming.logged);
  resolve(recv, sender_of(recv));
  if (incoming.transfer) incoming.transfer->wait();
  log_->done(incoming.logged);
  Incoming arrived = std::move(incoming);
  incoming_.erase(recv);
  return arrived;
}

TensorList Mailbox::take_forward(int stage, int micro_batch) {
  Incoming arrived = take(make_op(stage, Kind::kRecvForward, micro_batch));
  TensorList inputs;
  std::size_t next = 0;
  for (const TensorSpec& spec : arrived.spec()) {
    inputs.push_back(spec.defined ? arrived.payload[next++].set_requires_grad(spec.requires_grad) : at::Tensor());
  }
  return inputs;
}

TensorList Mailbox::take_backward(int stage, int micro_batch) {
  Incoming arrived = take(make_op(stage, Kind::kRecvBackward, micro_batch));
  TensorList gradients;
  std::size_t next = 0;
  for (const TensorSpec& spec : arrived.spec()) {
    gradients.push_back(spec.defined && spec.requires_grad ? arrived.payload[next++] : at::Tensor());
  }
  return gradients;
}

void Mailbox::settle(const Op& wait_send) {
  const auto found = unsettled_.find(wait_send);
  if (found == unsettled_.end()) return;
  for (const Outgoing& outgoing : found->second) {
    log_->start(outgoing.logged);
    outgoing.transfer->wait();
    log_->done(outgoing.logged);
  }
  unsettled_.erase(found);
}

bool Mailbox::idle() const { return incoming_.empty() && unsettled_.empty(); }

}  // namespace dualpipe
