// plugin/analysis/trace.h
//
// A Timeline as Chrome trace JSON ("Trace Event Format", complete events), which chrome://tracing and Perfetto open: a
// thread per rank, an event per action, named as in the text form.
#pragma once

#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

// One unit of the timeline becomes `unit_us` microseconds: 1000 shows simulated units as milliseconds, 1e6 is right for
// measured seconds.
std::string to_trace(const Timeline& timeline, double unit_us = 1000);

// Several timelines beside each other, a process each.
struct TraceEvent {
  std::string name;
  std::string category;
  double start = 0;
  double end = 0;
};
struct TraceLane {  // A thread. Its events do not overlap.
  std::string name;
  std::vector<TraceEvent> events;
};
struct TraceProcess {
  std::string name;
  std::vector<TraceLane> lanes;
};
std::string to_trace(const std::vector<TraceProcess>& processes, double unit_us = 1000);

// A rank's actions as a lane.
TraceLane trace_lane(std::string name, const std::vector<Span>& spans);

}  // namespace dualpipe
