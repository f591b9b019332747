#include "examples/custom_overlap/link.h"

#include <algorithm>
#include <thread>

namespace custom_overlap {

Link::Arrival Link::post() {
  ++exchanges_;
  free_at_ = std::max(free_at_, std::chrono::steady_clock::now()) + per_exchange_;
  return free_at_;
}

void Link::wait(Arrival arrival) {
  const auto began = std::chrono::steady_clock::now();
  if (arrival <= began) return;
  std::this_thread::sleep_until(arrival);
  waited_ += std::chrono::steady_clock::now() - began;
}

}  // namespace custom_overlap
