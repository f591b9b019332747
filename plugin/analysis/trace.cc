#include "plugin/analysis/trace.h"

#include <nlohmann/json.hpp>

#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Json = nlohmann::ordered_json;

Json rank_name(int rank) {
  return {{"name", "thread_name"},
          {"ph", "M"},
          {"pid", 0},
          {"tid", rank},
          {"args", {{"name", "rank " + std::to_string(rank)}}}};
}

Json event(const Span& span, int rank, double unit_us) {
  return {{"name", to_string(span.action)},
          {"cat", span.action.is_overlap() ? "F&B" : to_string(span.action.op.kind)},
          {"ph", "X"},
          {"ts", span.start * unit_us},
          {"dur", (span.end - span.start) * unit_us},
          {"pid", 0},
          {"tid", rank}};
}

}  // namespace

std::string to_trace(const Timeline& timeline, double unit_us) {
  Json events = Json::array();
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    events.push_back(rank_name(static_cast<int>(rank)));
    for (const Span& span : timeline.ranks[rank]) events.push_back(event(span, static_cast<int>(rank), unit_us));
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace dualpipe
