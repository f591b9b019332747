// plugin/runtime/step_recorder.h
//
// Fills the statistics of the step that is under way.
#pragma once

#include <chrono>

#include "plugin/runtime/statistics.h"

namespace dualpipe {

class StepRecorder {
 public:
  void begin();
  double seconds() const;  // Since begin().

  void add(const PhaseSpan& span);
  void saw_pending_bytes(std::size_t bytes);
  void saw_live(std::size_t activations);

  StepStatistics statistics;

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace dualpipe
