#include "plugin/runtime/timeline_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void add_known(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

Json to_json(const Span& span) {
  Json json = {to_string(span.action), span.start, span.end};
  if (span.waited > 0) json.push_back(span.waited);
  return json;
}

Json to_json(const PhaseSpan& span) {
  Json json = {span.name, span.start, span.end};
  if (span.communication) json.push_back(span.waited);
  return json;
}

Json to_json(const MemoryPoint& point) { return {point.seconds, point.bytes}; }

template <typename Items>
Json to_list(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

double end_of(const std::vector<Span>& spans) {
  double end = 0;
  for (const Span& span : spans) end = std::max(end, span.end);
  return end;
}

std::filesystem::path path_of(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("timeline_rank{}.jsonl", rank);
}

}  // namespace

TimelineHeader timeline_header(const Pipeline& pipeline) {
  TimelineHeader header;
  header.schedule = pipeline.schedule();
  header.rank = pipeline.world()->rank();
  header.world_size = pipeline.world()->size();
  header.pipeline_rank = pipeline.rank();
  header.pipeline_model_parallel_size = pipeline.size();
  header.num_microbatches = pipeline.num_microbatches();
  header.num_stages = pipeline.num_stages();
  header.stages = pipeline.stages();
  std::int64_t parameters = 0, gradients = 0;
  for (std::size_t i = 0; i < pipeline.parameters().size(); ++i) {
    const at::Tensor gradient = pipeline.gradients().gradient(i);
    parameters += static_cast<std::int64_t>(pipeline.parameters()[i].parameter.nbytes());
    gradients += gradient.defined() ? static_cast<std::int64_t>(gradient.nbytes()) : 0;
  }
  header.parameter_bytes = parameters;
  header.gradient_bytes = gradients;
  return header;
}

std::string header_line(const TimelineHeader& header) {
  Json json = {{"format", "dualpipe-timeline"},
               {"version", 1},
               {"schedule", header.schedule},
               {"rank", header.rank},
               {"world_size", header.world_size},
               {"pipeline_rank", header.pipeline_rank},
               {"pipeline_model_parallel_size", header.pipeline_model_parallel_size},
               {"num_microbatches", header.num_microbatches},
               {"num_stages", header.num_stages},
               {"stages", header.stages}};
  add_known(json, "parameter_bytes", header.parameter_bytes);
  add_known(json, "gradient_bytes", header.gradient_bytes);
  add_known(json, "optimizer_bytes", header.optimizer_bytes);
  return json.dump();
}

std::string step_line(std::int64_t iteration, const TimelineStep& step) {
  const StepStatistics& statistics = step.statistics;
  Json json = {{"iteration", iteration},
               {"began", statistics.began},
               {"seconds", step.seconds.value_or(end_of(statistics.spans))},
               {"spans", to_list(statistics.spans)}};
  if (!statistics.phases.empty()) {
    json["phases"] = to_list(statistics.phases);
    json["exchange_seconds"] = statistics.exchange_seconds;
    json["exposed_seconds"] = statistics.exchange_wait_seconds;
  }
  json["peak_activations"] = statistics.peak_activations;
  add_known(json, "peak_activation_bytes", step.peak_activation_bytes);
  if (!statistics.memory.empty()) json["memory"] = to_list(statistics.memory);
  return json.dump();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TimelineFile::TimelineFile(const std::filesystem::path& folder, const TimelineHeader& header)
    : path_(path_of(folder, header.rank)), stream_(path_) {
  write(header_line(header));
}

void TimelineFile::append(std::int64_t iteration, const TimelineStep& step) { write(step_line(iteration, step)); }

void TimelineFile::write(const std::string& line) {
  if (stream_) errno = 0;
  stream_ << line << std::endl;
  if (stream_) return;
  throw ScheduleError(path_.string(), fmt::format("must be a file that can be written, got: {}; free some space, or "
                                                  "choose another folder",
                                                  std::generic_category().message(errno)));
}

}  // namespace dualpipe
