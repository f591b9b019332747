#include "examples/pretrain_gpt/step_trace.h"

namespace pretrain_gpt {

std::optional<ExchangeSeconds> exchange_seconds(const StepTrace& trace) {
  std::optional<ExchangeSeconds> sums;
  if (trace.has_all_exchanges) {
    sums.emplace();
  }
  for (const TraceSpan& phase : trace.phases) {
    if (!phase.waited) {
      continue;
    }
    if (!sums) {
      sums.emplace();
    }
    sums->total += phase.end - phase.start;
    sums->waited += *phase.waited;
  }
  return sums;
}

}  // namespace pretrain_gpt
