// plugin/analysis/trace.h
//
// A Timeline as Chrome trace JSON ("Trace Event Format", complete events), which chrome://tracing and Perfetto open: a
// thread per rank, an event per action, named as in the text form.
#pragma once

#include <string>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

// One unit of the timeline becomes `unit_us` microseconds: 1000 shows simulated units as milliseconds, 1e6 is right for
// measured seconds.
std::string to_trace(const Timeline& timeline, double unit_us = 1000);

}  // namespace dualpipe
