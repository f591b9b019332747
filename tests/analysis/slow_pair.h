// tests/analysis/slow_pair.h
//
// A slow, obvious reference for the merge of a pair: every legal order, each timed from what its steps need.
#pragma once

#include "plugin/schedule/phase.h"

namespace dualpipe {

// The least makespan over all orders of computes in which the W keep the order of their I, and over all boundaries
// between computes at which a communication that follows another can be awaited and posted. Exponential.
double slow_least_makespan(const Phases& forward, const Phases& backward);

}  // namespace dualpipe
