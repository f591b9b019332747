#include "tests/stress/faults/virtual_clock.h"

#include <algorithm>

namespace dualpipe::stress {

VirtualClock::TimePoint VirtualClock::now() {
  std::lock_guard own(mutex_);
  return now_;
}

// Registered before `lock` is given up, so that no notify_all() after that is missed.
void VirtualClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, TimePoint deadline) {
  {
    std::unique_lock own(mutex_);
    if (now_ >= deadline) return;
    Sleeper sleeper{&wake, deadline};
    sleepers_.push_back(&sleeper);
    lock.unlock();
    sleep(own, sleeper);
  }
  lock.lock();
}

void VirtualClock::notify_all(std::condition_variable& wake) {
  std::lock_guard own(mutex_);
  for (auto next = sleepers_.begin(); next != sleepers_.end();) {
    Sleeper& sleeper = **next;
    next = sleeper.wake == &wake ? sleepers_.erase(next) : std::next(next);
    if (sleeper.wake == &wake) rouse(sleeper);
  }
}

void VirtualClock::sleep_for(Duration duration) {
  std::unique_lock own(mutex_);
  Sleeper sleeper{nullptr, now_ + duration};
  sleepers_.push_back(&sleeper);
  sleep(own, sleeper);
}

void VirtualClock::leave() {
  std::lock_guard own(mutex_);
  --threads_;
  move_if_all_sleep();
}

void VirtualClock::sleep(std::unique_lock<std::mutex>& own, Sleeper& sleeper) {
  move_if_all_sleep();
  sleeper.condition.wait(own, [&] { return sleeper.awake; });
}

void VirtualClock::move_if_all_sleep() {
  if (sleepers_.empty() || static_cast<int>(sleepers_.size()) < threads_) return;
  const auto sooner = [](const Sleeper* a, const Sleeper* b) { return a->deadline < b->deadline; };
  now_ = std::max(now_, (*std::min_element(sleepers_.begin(), sleepers_.end(), sooner))->deadline);
  for (auto next = sleepers_.begin(); next != sleepers_.end();) {
    Sleeper& sleeper = **next;
    const bool due = sleeper.deadline <= now_;
    next = due ? sleepers_.erase(next) : std::next(next);
    if (due) rouse(sleeper);
  }
}

void VirtualClock::rouse(Sleeper& sleeper) {
  sleeper.awake = true;
  sleeper.condition.notify_one();
}

}  // namespace dualpipe::stress
