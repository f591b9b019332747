// plugin/runtime/step_recorder.h
//
// Fills the statistics of the step that is under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "plugin/runtime/statistics.h"

namespace dualpipe {

class StepRecorder {
 public:
  void begin();
  double seconds() const;  // Since begin().

  void add(const Span& span);
  void add(PhaseSpan span);
  void saw_pending_bytes(std::size_t bytes);
  void saw_live(std::size_t activations);

  StepStatistics statistics;
  std::function<std::int64_t()> live_bytes;  // Empty: memory is not sampled.

 private:
  void sample_memory(double seconds);

  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace dualpipe
