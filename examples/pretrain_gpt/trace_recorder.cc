#include "examples/pretrain_gpt/trace_recorder.h"

#include <algorithm>
#include <utility>

namespace pretrain_gpt {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void TraceRecorder::begin() {
  trace_ = {};
  trace_.has_all_exchanges = true;
  live_activations_ = 0;
  began_ = Clock::now();
  trace_.began = unix_seconds();
  bytes_at_begin_ = live_bytes_ ? live_bytes_() : 0;
  sample_memory(0);
}

void TraceRecorder::begin_activation() {
  trace_.peak_activations = std::max(trace_.peak_activations.value_or(0), ++live_activations_);
}

void TraceRecorder::add_action(std::string cell, double start) {
  const double end = seconds();
  trace_.actions.push_back({std::move(cell), start, end});
  sample_memory(end);
}

void TraceRecorder::add_exchange(std::string name, Clock::time_point posted, Clock::time_point waiting,
                                 Clock::time_point done) {
  trace_.phases.push_back(
      {std::move(name), since_begin(posted), since_begin(done), std::chrono::duration<double>(done - waiting).count()});
}

void TraceRecorder::sample_memory(double seconds) {
  if (live_bytes_) {
    trace_.memory.push_back({seconds, live_bytes_() - bytes_at_begin_});
  }
}

}  // namespace pretrain_gpt
