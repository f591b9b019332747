// examples/pretrain_gpt/failures/blame.h
//
// Who holds the others up, when nobody gets any further.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/failures/failure.h"
#include "examples/pretrain_gpt/failures/progress.h"

namespace pretrain_gpt {

// What a rank's watch writes into the store, some times a second, whatever the rank itself does.
struct Beat {
  std::uint64_t number = 0;  // Of beats so far.
  Standing standing;
  std::chrono::milliseconds still{0};  // Since the standing last changed.
  ProcessIdentity process;
  std::chrono::milliseconds computed{0};  // Processor time of the process so far.
};

std::string to_text(const Beat& beat);
Beat beat_from_text(const std::string& text);

using Beats = std::vector<std::optional<Beat>>;  // By rank; nothing of one that never wrote any.

// The failure that rank `here` records after it stood still for `patience`. `before` and `after` were read so far apart
// that every watch has beaten in between. In this order:
//   ranks whose watch has stopped beating: their processes are stopped, or their machines are gone;
//   else, of the ranks that wait for no other, the one that has stood still longest: an action that does not end. Those
//     that compute come before those that do not: what the ranks of a tensor-parallel group wait for inside an action
//     is not seen, but that they are idle is;
//   else the rank at which the chain of who waits for whom ends or closes.
Failure blame(const Beats& before, const Beats& after, int here, std::chrono::milliseconds patience);

}  // namespace pretrain_gpt
