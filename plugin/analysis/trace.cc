#include "plugin/analysis/trace.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Json = nlohmann::ordered_json;

Json name_of(const char* what, std::size_t process, std::size_t thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

Json to_json(const TraceEvent& event, std::size_t process, std::size_t thread, double unit_us) {
  return {{"name", event.name},
          {"cat", event.category},
          {"ph", "X"},
          {"ts", event.start * unit_us},
          {"dur", (event.end - event.start) * unit_us},
          {"pid", process},
          {"tid", thread}};
}

void add_lanes(Json& events, const TraceProcess& process, std::size_t number, std::size_t thread, double unit_us) {
  for (const TraceLane& lane : process.lanes) {
    events.push_back(name_of("thread_name", number, thread, lane.name));
    for (const TraceEvent& event : lane.events) events.push_back(to_json(event, number, thread, unit_us));
    ++thread;
  }
}

std::string print(Json events) { return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(); }

}  // namespace

TraceLane trace_lane(std::string name, const std::vector<Span>& spans) {
  TraceLane lane{std::move(name), {}};
  for (const Span& span : spans)
    lane.events.push_back({to_string(span.action), span.action.is_overlap() ? "F&B" : to_string(span.action.op.kind),
                           span.start, span.end});
  return lane;
}

// Perfetto takes thread 0 for the kernel's idle task and a thread's number to be one of the whole machine.
std::string to_trace(const std::vector<TraceProcess>& processes, double unit_us) {
  Json events = Json::array();
  std::size_t number = 1;
  std::size_t thread = 1;
  for (const TraceProcess& process : processes) {
    events.push_back(name_of("process_name", number, thread, process.name));
    add_lanes(events, process, number, thread, unit_us);
    thread += process.lanes.size();
    ++number;
  }
  return print(std::move(events));
}

std::string to_trace(const Timeline& timeline, double unit_us) {
  TraceProcess process;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
    process.lanes.push_back(trace_lane("rank " + std::to_string(rank), timeline.ranks[rank]));
  Json events = Json::array();
  add_lanes(events, process, 0, 0, unit_us);
  return print(std::move(events));
}

}  // namespace dualpipe
