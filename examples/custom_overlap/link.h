// examples/custom_overlap/link.h
//
// A link between experts that is slow: it moves one exchange at a time, each takes as long, and none costs compute. In
// the place of an all-to-all over a network, so that the example runs on one machine and shows the same on any.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <functional>

namespace custom_overlap {

class Link : public torch::CustomClassHolder {
 public:
  using Arrival = std::chrono::steady_clock::time_point;

  explicit Link(std::chrono::microseconds per_exchange) : per_exchange_(per_exchange) {}

  // Starts an exchange; says when it will be there.
  Arrival post();
  // Does nothing until then.
  void wait(Arrival arrival);

  int exchanges() const { return exchanges_; }
  double waited_seconds() const { return std::chrono::duration<double>(waited_).count(); }

  // What a backward does while an exchange of its own is under way; empty: nothing.
  std::function<void()> meanwhile;

 private:
  std::chrono::microseconds per_exchange_;
  Arrival free_at_{};
  int exchanges_ = 0;
  std::chrono::steady_clock::duration waited_{};
};

using LinkPtr = c10::intrusive_ptr<Link>;

}  // namespace custom_overlap
