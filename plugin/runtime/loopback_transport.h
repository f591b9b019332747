// plugin/runtime/loopback_transport.h
//
// Ranks as threads of one process, for tests and benchmarks. A message is copied when both sides have posted it, by
// whichever came second; the contract of c10d holds: payloads move only after the receiver has posted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/runtime/transport.h"

namespace dualpipe {

// The time in which loopback transports wait. A test may put one in place that moves when nobody else can.
class LoopbackClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~LoopbackClock() = default;
  virtual TimePoint now();
  // As std::condition_variable's; may return early.
  virtual void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, TimePoint deadline);
  virtual void notify_all(std::condition_variable& wake);
};

struct LoopbackOptions {
  std::chrono::milliseconds timeout{60000};  // Of one wait.
  std::chrono::microseconds delay{0};        // A message arrives this long after both sides have posted it.
  // Where messages live. Of another device than the CPU all ranks use the same stream, such as the default one.
  at::Device device{at::kCPU};
  std::shared_ptr<LoopbackClock> clock = std::make_shared<LoopbackClock>();  // Steady time.
};

// One transport per rank; they share what they need. Each is used by its own thread.
std::vector<std::shared_ptr<Transport>> make_loopback(int ranks, const LoopbackOptions& options = {});

// In-process failure channel that ranks of make_loopback share.
std::shared_ptr<FailureChannel> make_loopback_failure_channel();

}  // namespace dualpipe
