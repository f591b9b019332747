// examples/pretrain_gpt/trace_recorder.h
//
// Takes down the step that is under way as a StepTrace: two looks at the clock per action.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "examples/pretrain_gpt/step_trace.h"

namespace pretrain_gpt {

class TraceRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // `live_bytes` counts what is in use at a moment, anything that does not change during a step included; empty: memory
  // is not known.
  explicit TraceRecorder(std::function<std::int64_t()> live_bytes = {}) : live_bytes_(std::move(live_bytes)) {}

  void begin();
  double seconds() const { return since_begin(Clock::now()); }

  // A forward begins, and its activations live; a backward has ended, and they do not.
  void begin_activation();
  void end_activation() { --live_activations_; }

  // An action that ends now.
  void add_action(std::string cell, double start);
  // Is told of all of them.
  void add_exchange(std::string name, Clock::time_point posted, Clock::time_point waiting, Clock::time_point done);

  const StepTrace& trace() const { return trace_; }

 private:
  double since_begin(Clock::time_point time) const { return std::chrono::duration<double>(time - began_).count(); }
  void sample_memory(double seconds);

  std::function<std::int64_t()> live_bytes_;
  Clock::time_point began_ = Clock::now();
  std::int64_t bytes_at_begin_ = 0;
  int live_activations_ = 0;
  StepTrace trace_;
};

// By the clock of StepTrace::began.
double unix_seconds();

}  // namespace pretrain_gpt
