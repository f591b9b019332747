// plugin/schedule/action.h
//
// What a rank does next: one operation, or a forward and a backward that run overlapped.
//
// An Op names a stage, a kind and a micro-batch; (stage, micro-batch) also names the rank, by way of a Placement, so an
// Op needs no direction. Text form (plugin/schedule/text.h): "0F7", "3B2", "(0F7;3B2)OVERLAP_F_B", "1SEND_F0".
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

namespace dualpipe {

// The kinds that torch.distributed.pipelining 2.15 writes. B is the full backward: I (input gradient) followed by W
// (weight gradient). SEND_F and RECV_B belong to the stage that computes the F; RECV_F and SEND_B to the stage that
// computes the B, i.e. "0SEND_F7" meets "1RECV_F7" and "1SEND_B7" meets "0RECV_B7".
enum class Kind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
  kWaitSendForward,  // The sent activation is known to have arrived: what the send kept alive is freed.
  kWaitSendBackward,
  kReduceGrad,      // Gradients of the stage are final on this rank: start their reduction. Has no micro-batch.
  kWaitReduceGrad,  // Has no micro-batch; read and written for torch, never generated here.
  kUnshard,         // FSDP; likewise.
  kReshard,         // FSDP; likewise.
};

inline constexpr int kKindCount = 14;

// True for F, B, I and W.
constexpr bool is_compute(Kind kind) { return kind <= Kind::kBackwardWeight; }
constexpr bool is_send(Kind kind) { return kind == Kind::kSendForward || kind == Kind::kSendBackward; }
constexpr bool is_recv(Kind kind) { return kind == Kind::kRecvForward || kind == Kind::kRecvBackward; }
constexpr bool is_wait_send(Kind kind) { return kind == Kind::kWaitSendForward || kind == Kind::kWaitSendBackward; }
// False for REDUCE_GRAD, WAIT_REDUCE_GRAD, UNSHARD and RESHARD, whose micro_batch is 0 and means nothing.
constexpr bool has_micro_batch(Kind kind) { return kind < Kind::kReduceGrad; }

// 8 bytes: P=1024, M=16384 makes tens of millions of them.
struct Op {
  std::int32_t micro_batch = 0;
  std::uint16_t stage = 0;  // At most 65,535 stages.
  Kind kind = Kind::kForward;

  friend bool operator==(const Op&, const Op&) = default;
  friend auto operator<=>(const Op&, const Op&) = default;
};

constexpr Op make_op(int stage, Kind kind, int micro_batch = 0) {
  return Op{micro_batch, static_cast<std::uint16_t>(stage), kind};
}

// One cell of a schedule. `paired` is the backward (B, never I or W) of an overlapped pair whose forward is `op`.
struct Action {
  Op op;
  std::optional<Op> paired;

  bool is_overlap() const { return paired.has_value(); }

  friend bool operator==(const Action&, const Action&) = default;
};

inline Action single(Op op) { return Action{op, std::nullopt}; }
inline Action overlap(Op forward, Op backward) { return Action{forward, backward}; }

}  // namespace dualpipe
