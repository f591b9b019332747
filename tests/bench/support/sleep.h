// tests/bench/support/sleep.h
//
// Compute that costs an exact time and no processor: a differentiable operation that sleeps. So two cores are enough
// for many ranks, and what a rank takes beyond its sleeps is the runtime's doing and the links'.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

namespace dualpipe::bench {

using Milliseconds = std::chrono::duration<double, std::milli>;

// What the sleeps of one thread overslept, in milliseconds, in their order.
class Overshoot {
 public:
  void add(Milliseconds late) { samples_.push_back(late.count()); }
  const std::vector<double>& samples() const { return samples_; }
  void clear() { samples_.clear(); }

 private:
  std::vector<double> samples_;
};

// {"sleeps", "median_ms", "p99_ms", "max_ms"}; the number alone where there were none.
nlohmann::json describe(const Overshoot& overshoot);

// When a body that begins now has to end, whatever it computes until then.
class Deadline {
 public:
  explicit Deadline(Milliseconds from_now);
  // Asks the kernel not to batch its timers with others.
  void sleep(Overshoot& overshoot) const;

 private:
  std::chrono::steady_clock::time_point end_;
};

// What a layer takes. Parts of no length do not sleep.
struct Pace {
  Milliseconds forward{0};
  Milliseconds backward_input{0};
  Milliseconds backward_weight{0};
  Milliseconds overlapped{0};  // A forward and a backward that run as one body.
};

// Where and how long layers sleep. It outlives the graphs of their layers, which are all used by one thread.
struct Sleeper {
  Pace pace;
  Overshoot overshoot;
  bool awake = false;      // Within a body that sleeps by itself.
  bool rehearses = false;  // Nothing sleeps.
  at::Tensor no_gradient = at::zeros({});

  void sleep(const Deadline& deadline, Milliseconds length);
};

// input + weight, at the sleeper's pace. `weight` is a scalar that trains; its gradient is not worked out but 0, so
// that the copies of messages have the processors to themselves.
at::Tensor sleeping_layer(const at::Tensor& input, const at::Tensor& weight, Sleeper& sleeper);

}  // namespace dualpipe::bench
