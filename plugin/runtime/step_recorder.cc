#include "plugin/runtime/step_recorder.h"

#include <algorithm>
#include <utility>

namespace dualpipe {

void StepRecorder::begin() {
  statistics = {};
  began_ = std::chrono::steady_clock::now();
  statistics.began = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  sample_memory(0);
}

double StepRecorder::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void StepRecorder::add(const Span& span) {
  statistics.spans.push_back(span);
  sample_memory(span.end);
}

void StepRecorder::add(PhaseSpan span) {
  if (span.communication) {
    statistics.exchange_seconds += span.end - span.start;
    statistics.exchange_wait_seconds += span.waited;
  }
  statistics.phases.push_back(std::move(span));
}

void StepRecorder::sample_memory(double seconds) {
  if (live_bytes) statistics.memory.push_back({seconds, live_bytes()});
}

void StepRecorder::saw_pending_bytes(std::size_t bytes) {
  statistics.peak_pending_weight_bytes = std::max(statistics.peak_pending_weight_bytes, bytes);
}

void StepRecorder::saw_live(std::size_t activations) {
  statistics.peak_activations = std::max(statistics.peak_activations, static_cast<int>(activations));
}

}  // namespace dualpipe
