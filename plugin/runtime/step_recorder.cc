#include "plugin/runtime/step_recorder.h"

#include <algorithm>

namespace dualpipe {

void StepRecorder::begin() {
  statistics = {};
  began_ = std::chrono::steady_clock::now();
}

double StepRecorder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void StepRecorder::add(const PhaseSpan& span) {
  statistics.phases.push_back(span);
  if (!span.communication) return;
  statistics.exchange_seconds += span.end - span.start;
  statistics.exchange_wait_seconds += span.waited;
}

void StepRecorder::saw_pending_bytes(std::size_t bytes) {
  statistics.peak_pending_weight_bytes = std::max(statistics.peak_pending_weight_bytes, bytes);
}

void StepRecorder::saw_live(std::size_t activations) {
  statistics.peak_activations = std::max(statistics.peak_activations, static_cast<int>(activations));
}

}  // namespace dualpipe
