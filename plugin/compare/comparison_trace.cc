#include "plugin/compare/comparison_trace.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace dualpipe {
namespace {

// The first lane that is free by then gets the event: events of one lane do not overlap.
void place(std::vector<TraceLane>& lanes, const std::string& name, TraceEvent event) {
  const auto is_free = [&](const TraceLane& lane) { return lane.events.back().end <= event.start; };
  const auto lane = std::find_if(lanes.begin(), lanes.end(), is_free);
  if (lane != lanes.end())
    lane->events.push_back(std::move(event));
  else
    lanes.push_back({name, {std::move(event)}});
}

std::vector<TraceLane> lanes_of(const std::string& name, std::vector<TraceEvent> events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.start < b.start; });
  std::vector<TraceLane> lanes;
  for (TraceEvent& event : events) place(lanes, name, std::move(event));
  return lanes;
}

std::vector<TraceEvent> phase_events(const RankPicture& rank, bool exchanges) {
  std::vector<TraceEvent> events;
  for (const PhaseRecord& phase : rank.phases) {
    if (phase.waited.has_value() == exchanges)
      events.push_back({phase.name, exchanges ? "exchange" : "compute", phase.start, phase.end});
  }
  return events;
}

void append(std::vector<TraceLane>& lanes, std::vector<TraceLane> more) {
  lanes.insert(lanes.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
}

TraceProcess process_of(const std::string& name, const StepPicture& picture) {
  TraceProcess process{name, {}};
  for (const RankPicture& rank : picture) {
    const std::string lane = "rank " + std::to_string(rank.rank);
    append(process.lanes, lanes_of(lane, trace_lane(lane, rank.spans).events));
    append(process.lanes, lanes_of(lane + ", phases", phase_events(rank, false)));
    append(process.lanes, lanes_of(lane + ", exchanges", phase_events(rank, true)));
  }
  return process;
}

}  // namespace

std::vector<TraceProcess> trace_processes(const Comparison& comparison) {
  std::vector<TraceProcess> processes;
  for (const ScheduleFigures& run : comparison.runs) {
    if (!run.measured.empty()) processes.push_back(process_of(run.schedule + ", measured", run.measured));
    if (!run.simulated.empty()) processes.push_back(process_of(run.schedule + ", simulated", run.simulated));
  }
  return processes;
}

}  // namespace dualpipe
