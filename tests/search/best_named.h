// tests/search/best_named.h
//
// What the named schedules take under a request, by simulate() and memory_of() alone: the oracle of the choice.
#pragma once

#include "plugin/search/choose_schedule.h"

namespace dualpipe {

// The least makespan of those whose rule allows P and M, whose placement is asked for and whose activations and bytes
// fit the limits; nothing where there is none. Costs and bytes are of P or 2P stages.
std::optional<double> best_named_makespan(const AutoRequest& request);

}  // namespace dualpipe
