#include "adapters/libtorch_host/step_trace.h"

#include <optional>

#include "plugin/schedule/text.h"

namespace dualpipe::libtorch_host {

pretrain_gpt::StepTrace trace_of(const StepStatistics& statistics) {
  pretrain_gpt::StepTrace trace;
  trace.began = statistics.began;
  trace.peak_activations = statistics.peak_activations;
  for (const Span& span : statistics.spans) {
    trace.actions.push_back(
        {to_string(span.action), span.start, span.end, span.waited > 0 ? std::optional(span.waited) : std::nullopt});
  }
  for (const PhaseSpan& span : statistics.phases) {
    trace.phases.push_back(
        {span.name, span.start, span.end, span.communication ? std::optional(span.waited) : std::nullopt});
  }
  for (const MemoryPoint& point : statistics.memory) {
    trace.memory.push_back({point.seconds, point.bytes - statistics.memory.front().bytes});
  }
  return trace;
}

}  // namespace dualpipe::libtorch_host
