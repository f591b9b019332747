// plugin/compare/comparison_trace.h
//
// trace_processes(): a comparison for Chrome and Perfetto.
#pragma once

#include <vector>

#include "plugin/analysis/trace.h"
#include "plugin/compare/comparison.h"

namespace dualpipe {

// A process per schedule and timeline, "dualpipe, measured" and "dualpipe, simulated"; in it a thread per rank, beside
// it one with the phases that computed, and as many as it takes for exchanges that ran at once. Seconds.
std::vector<TraceProcess> trace_processes(const Comparison& comparison);

}  // namespace dualpipe
