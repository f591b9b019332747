// examples/pretrain_gpt/step_trace.h
//
// What a rank did in a training step, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pretrain_gpt {

// Seconds since the step began.
struct TraceSpan {
  std::string
      name;  // Of an action its cell in the text form, "0F3"; of a phase that and its own name, "0F3 0.attention".
  double start = 0;
  double end = 0;
  // How much of that the rank did nothing but wait: of an exchange, for it; of an action, for messages, where it did.
  std::optional<double> waited = {};
};

struct TracePoint {
  double seconds = 0;  // Since the step began.
  std::int64_t bytes = 0;
};

struct StepTrace {
  double began = 0;                     // Unix time in seconds: ranks of one machine share a clock.
  std::vector<TraceSpan> actions;       // Compute actions, in the order in which they ran.
  std::vector<TraceSpan> phases;        // In the order in which they ended; those that the schedule knows of.
  std::optional<int> peak_activations;  // Most (stage, micro-batch) between their forward and their backward at once.
  bool has_all_exchanges = false;  // Whether `phases` holds every exchange that there was; where none, there was none.
  std::vector<TracePoint> memory;  // Live activation bytes at the begin and at the end of every action; may be empty.
};

// From posting an exchange to having awaited it, summed over all of them, and how much of that was spent waiting.
struct ExchangeSeconds {
  double total = 0;
  double waited = 0;
};

// Nothing where the trace has no exchange and there may have been some.
std::optional<ExchangeSeconds> exchange_seconds(const StepTrace& trace);

}  // namespace pretrain_gpt
