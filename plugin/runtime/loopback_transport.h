// plugin/runtime/loopback_transport.h
//
// Ranks as threads of one process, for tests and benchmarks. A message is copied when both sides have posted it, by
// whichever came second; the contract of c10d holds: payloads move only after the receiver has posted.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "plugin/runtime/transport.h"

namespace dualpipe {

struct LoopbackOptions {
  std::chrono::milliseconds timeout{60000};  // Of one wait.
  std::chrono::microseconds delay{0};        // A message arrives this long after both sides have posted it.
  // Where messages live. Of another device than the CPU all ranks use the same stream, such as the default one.
  at::Device device{at::kCPU};
};

// One transport per rank; they share what they need. Each is used by its own thread.
std::vector<std::shared_ptr<Transport>> make_loopback(int ranks, const LoopbackOptions& options = {});

// In-process failure channel that ranks of make_loopback share.
std::shared_ptr<FailureChannel> make_loopback_failure_channel();

}  // namespace dualpipe
