#include "examples/pretrain_gpt/timeline_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TraceSpan& span) {
  Json json = {span.name, span.start, span.end};
  if (span.waited) {
    json.push_back(*span.waited);
  }
  return json;
}

Json to_json(const TracePoint& point) { return {point.seconds, point.bytes}; }

template <typename Items>
Json to_list(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) {
    list.push_back(to_json(item));
  }
  return list;
}

}  // namespace

std::string timeline_header_line(const TimelineHeader& header) {
  return Json{{"format", "dualpipe-timeline"},
              {"version", 1},
              {"schedule", header.schedule},
              {"rank", header.rank},
              {"world_size", header.world_size},
              {"pipeline_rank", header.pipeline_rank},
              {"pipeline_model_parallel_size", header.pipeline_model_parallel_size},
              {"num_microbatches", header.num_microbatches},
              {"num_stages", header.num_stages},
              {"stages", header.stages},
              {"parameter_bytes", header.bytes.parameters},
              {"gradient_bytes", header.bytes.gradients},
              {"optimizer_bytes", header.bytes.optimizer_state}}
      .dump();
}

std::string timeline_step_line(const TimelineStep& step) {
  const StepTrace& trace = step.trace;
  Json json = {{"iteration", step.iteration},
               {"began", trace.began},
               {"seconds", step.seconds},
               {"spans", to_list(trace.actions)}};
  if (!trace.phases.empty()) {
    json["phases"] = to_list(trace.phases);
  }
  if (const std::optional<ExchangeSeconds> exchanges = exchange_seconds(trace)) {
    json["exchange_seconds"] = exchanges->total;
    json["exposed_seconds"] = exchanges->waited;
  }
  if (trace.peak_activations) {
    json["peak_activations"] = *trace.peak_activations;
  }
  json["peak_activation_bytes"] = step.peak_activation_bytes;
  if (!trace.memory.empty()) {
    json["memory"] = to_list(trace.memory);
  }
  return json.dump();
}

std::filesystem::path timeline_path(const std::filesystem::path& output_dir, int rank) {
  return output_dir / fmt::format("timeline_rank{}.jsonl", rank);
}

}  // namespace pretrain_gpt
