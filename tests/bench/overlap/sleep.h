// tests/bench/overlap/sleep.h
//
// Compute that costs an exact time and no processor: a differentiable operation that sleeps. So two cores are enough
// for many ranks, and what a rank takes beyond its sleeps is the runtime's doing and the links'.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <vector>

namespace dualpipe::bench {

using Milliseconds = std::chrono::duration<double, std::milli>;

// What all sleeps of this process overslept, in milliseconds, in their order. One thread sleeps.
class Overshoot {
 public:
  void add(Milliseconds late) { samples_.push_back(late.count()); }
  const std::vector<double>& samples() const { return samples_; }

 private:
  std::vector<double> samples_;
};

// When a body that begins now has to end, whatever it computes until then.
class Deadline {
 public:
  explicit Deadline(Milliseconds from_now);
  // Asks the kernel not to batch its timers with others.
  void sleep(Overshoot& overshoot) const;

 private:
  std::chrono::steady_clock::time_point end_;
};

// input + weight, at the price of one `time` each for F, I and W. `weight` is a scalar that trains. `overshoot`
// outlives the graph.
at::Tensor sleeping_layer(const at::Tensor& input, const at::Tensor& weight, Milliseconds time, Overshoot& overshoot);

}  // namespace dualpipe::bench
