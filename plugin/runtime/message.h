// plugin/runtime/message.h
//
// What the transports share: how a message is named in errors, and what a message may consist of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

enum class Direction : std::uint8_t { kSend, kReceive };

constexpr int kCollectiveChannel = 7;  // Of the collectives' own messages; below it are the callers'.

// One side's end of one message. Messages of one (peer, direction, channel) are numbered from 0.
struct MessageName {
  int rank = 0;
  std::optional<int> peer;  // None: a collective over all ranks.
  Direction direction = Direction::kSend;
  int channel = 0;
  std::int64_t number = 0;

  std::string to_string() const;  // "rank 1, receive 3 from rank 0 (channel 0)"
};

// "float32[2, 3], int64[4]"; "nothing" for an empty list.
std::string describe_tensors(const TensorList& tensors);

// Same dtype as the tensors given; half and bfloat16 are summed in float32.
at::Tensor sum_in_rank_order(const TensorList& by_rank);

// The contract of Transport: another rank as peer, tensors defined and contiguous. A breach is a broken invariant.
void check_message(const MessageName& name, int size, const TensorList& tensors);

}  // namespace dualpipe
