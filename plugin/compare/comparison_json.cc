#include "plugin/compare/comparison_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);  // dump() writes null for what is not finite.
}

Json known(const std::vector<std::optional<double>>& values) {
  Json list = Json::array();
  for (const std::optional<double>& value : values) list.push_back(or_null(value));
  const bool is_any = std::any_of(values.begin(), values.end(), [](const auto& value) { return value.has_value(); });
  return is_any ? list : Json(nullptr);
}

Json to_json(const std::optional<Estimate>& ms) {
  if (!ms) return nullptr;
  return {{"median", ms->value}, {"low", ms->low}, {"high", ms->high}};
}

Json to_json(const std::optional<SpeedUp>& speedup) {
  if (!speedup) return nullptr;
  return {{"value", speedup->value}, {"low", or_null(speedup->low)}, {"high", or_null(speedup->high)}};
}

Json to_json(const std::vector<Span>& spans) {
  Json rows = Json::array();
  for (const Span& span : spans) {
    rows.push_back(Json::array({to_string(span.action), span.start, span.end}));
    if (span.waited > 0) rows.back().push_back(span.waited);
  }
  return rows;
}

Json to_json(const std::vector<PhaseRecord>& phases) {
  Json rows = Json::array();
  for (const PhaseRecord& phase : phases) {
    rows.push_back(Json::array({phase.name, phase.start, phase.end}));
    if (phase.waited) rows.back().push_back(*phase.waited);
  }
  return rows;
}

Json to_json(const std::vector<MemorySample>& samples) {
  Json rows = Json::array();
  for (const MemorySample& sample : samples) rows.push_back(Json::array({sample.time, sample.bytes}));
  return rows;
}

Json to_json(const StepPicture& picture) {
  if (picture.empty()) return nullptr;
  Json ranks = Json::array();
  for (const RankPicture& rank : picture)
    ranks.push_back({{"rank", rank.rank},
                     {"pipeline", rank.pipeline},
                     {"stages", rank.stages},
                     {"spans", to_json(rank.spans)},
                     {"phases", to_json(rank.phases)},
                     {"memory", to_json(rank.memory)}});
  return {{"unit", "s"}, {"ranks", std::move(ranks)}};
}

void add_figures(Json& json, const ScheduleFigures& run) {
  json["ms"] = to_json(run.ms);
  json["speedup"] = to_json(run.speedup);
  json["predicted_ms"] = or_null(run.predicted_ms);
  json["predicted_difference"] = or_null(run.predicted_difference);
  json["bubble"] = or_null(run.bubble);
  json["exposed_ms"] = or_null(run.exposed_ms);
  json["utilization"] = or_null(run.utilization);
  json["pipeline_ms"] = or_null(run.pipeline_ms);
  json["simulated_ms"] = or_null(run.simulated_ms);
  json["peak_activations"] = or_null(run.peak_activations);
  json["peak_activation_bytes"] = or_null(run.peak_activation_bytes);
  json["parameter_bytes"] = or_null(run.parameter_bytes);
  json["gradient_bytes"] = or_null(run.gradient_bytes);
  json["optimizer_bytes"] = or_null(run.optimizer_bytes);
  json["parameter_copies"] = or_null(run.parameter_copies);
  json["num_stages"] = or_null(run.num_stages);
  json["chunks"] = or_null(run.chunks);
  json["first_loss_difference"] = or_null(run.first_loss_difference);
  json["first_grad_norm_difference"] = or_null(run.first_grad_norm_difference);
  json["loss_difference"] = or_null(run.loss_difference);
  json["grad_norm_difference"] = or_null(run.grad_norm_difference);
}

Json to_json(const ScheduleFigures& run) {
  Json json{{"schedule", run.schedule}, {"failure", or_null(run.failure)}, {"not_run", run.not_run}};
  add_figures(json, run);
  json["losses"] = run.failure ? Json(nullptr) : Json(run.losses);
  json["grad_norms"] = known(run.grad_norms);
  json["measured"] = to_json(run.measured);
  json["simulated"] = to_json(run.simulated);
  return json;
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  const ComparisonOptions& options = comparison.options;
  Json json{{"format", "dualpipe-comparison"},
            {"version", 1},
            {"title", options.title},
            {"command", options.command},
            {"iterations", comparison.iterations},
            {"rounds", comparison.rounds},
            {"warmup", options.warmup},
            {"baseline", options.baseline},
            {"reference", or_null(comparison.reference)},
            {"cost_file", options.cost ? Json(options.cost->name) : Json(nullptr)},
            {"tolerance_first", options.tolerance_first},
            {"tolerance_curve", options.tolerance_curve},
            {"notes", comparison.notes},
            {"mismatches", comparison.mismatches},
            {"runs", Json::array()}};
  for (const ScheduleFigures& run : comparison.runs) json["runs"].push_back(to_json(run));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dualpipe
