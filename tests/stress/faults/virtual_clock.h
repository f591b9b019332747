// tests/stress/faults/virtual_clock.h
//
// Time that stands still while any rank runs and jumps to the next deadline when all of them wait: an hour of waiting
// takes no time, and a wait that would last for ever in a deadlock ends at its timeout.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>

#include "plugin/runtime/loopback_transport.h"

namespace dualpipe::stress {

class VirtualClock : public LoopbackClock {
 public:
  using Duration = TimePoint::duration;

  // Time moves when that many threads wait.
  explicit VirtualClock(int threads) : threads_(threads) {}

  TimePoint now() override;
  void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, TimePoint deadline) override;
  void notify_all(std::condition_variable& wake) override;

  void sleep_for(Duration duration);
  void leave();  // One of the threads has ended.

 private:
  struct Sleeper {
    const std::condition_variable* wake;  // What it was told to wait at.
    TimePoint deadline;
    bool awake = false;
    std::condition_variable condition = {};
  };

  void sleep(std::unique_lock<std::mutex>& own, Sleeper& sleeper);
  void move_if_all_sleep();
  void rouse(Sleeper& sleeper);

  std::mutex mutex_;
  int threads_;
  TimePoint now_{};
  std::list<Sleeper*> sleepers_;
};

}  // namespace dualpipe::stress
