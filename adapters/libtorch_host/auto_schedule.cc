#include "adapters/libtorch_host/auto_schedule.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "adapters/libtorch_host/plugin_schedule.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "plugin/analysis/cost_file.h"
#include "plugin/schedule/text.h"

namespace dualpipe::libtorch_host {
namespace {

bool divides_into(const pretrain_gpt::Config& config, int stages) {
  const auto& counts = config.pipeline_layer_counts;
  return counts.empty() ? config.num_layers >= stages : static_cast<int>(counts.size()) == stages;
}

std::vector<PlacementKind> placements(const pretrain_gpt::Config& config, const ScheduleSpec& spec) {
  const int ranks = spec.pipeline_model_parallel_size;
  std::vector<PlacementKind> kinds;
  if (divides_into(config, ranks)) {
    kinds.push_back(PlacementKind::kLoop);
    if (ranks % 2 == 0 && spec.num_microbatches % 2 == 0) kinds.push_back(PlacementKind::kBidirectional);
  }
  if (divides_into(config, 2 * ranks)) kinds.push_back(PlacementKind::kVee);
  return kinds;
}

// One cost per layer, where the user divides them.
void cost_by_layers(const pretrain_gpt::Config& config, AutoRequest& request) {
  for (const std::int64_t count : config.pipeline_layer_counts) {
    const auto layers = static_cast<double>(count);
    request.cost.per_stage.push_back({layers, layers, layers, 3 * layers});
  }
}

void cost_by_file(const std::string& path, AutoRequest& request) {
  const CostFile file = read_cost_file(path);
  const FittedCost fitted = fit(file, static_cast<int>(file.stages.size()));
  request.cost = fitted.cost;
  request.bytes = fitted.bytes;
}

// The costs and bytes of the file are those of the stages that were measured; layers balanced by their own times make
// others, and others for each placement.
void refuse_balance(const pretrain_gpt::Config& config) {
  if (config.balance != "measured") return;
  throw pretrain_gpt::UserError(
      "balance",
      "must be even with pipeline_schedule: auto, which chooses by the stages that cost_file was measured with, got "
      "measured; for example balance: even, or balance: measured with pipeline_schedule: dualpipev");
}

void limit_memory(const pretrain_gpt::Config& config, AutoRequest& request) {
  if (config.memory_limit_gb == 0) return;
  if (request.bytes.empty()) {
    throw pretrain_gpt::UserError(
        "memory_limit_gb",
        fmt::format(
            "must come with a cost_file whose stages have parameter_bytes and activation_bytes under "
            "pipeline_schedule: auto, got {}; for example cost_file: output/profile/cost.json, which `dualpipe "
            "profile` writes",
            config.cost_file.empty()
                ? "no cost_file"
                : fmt::format("no {} in {}", *missing_bytes(read_cost_file(config.cost_file)), config.cost_file)));
  }
  request.memory_limit_gb = config.memory_limit_gb;
}

std::string origin_of_costs(const pretrain_gpt::Config& config) {
  if (!config.cost_file.empty()) return fmt::format("costs of {}", config.cost_file);
  return fmt::format("no cost_file: {} cost the same, F = I = W, an overlapped pair F + B, messages nothing",
                     config.pipeline_layer_counts.empty() ? "stages" : "layers");
}

}  // namespace

AutoRequest auto_request(const pretrain_gpt::Config& config, int pipeline_size) {
  const ScheduleSpec spec = spec_of(config, pipeline_size);
  refuse_balance(config);
  AutoRequest request;
  request.pipeline_model_parallel_size = spec.pipeline_model_parallel_size;
  request.num_microbatches = spec.num_microbatches;
  const int chunks = spec.virtual_pipeline_model_parallel_size;
  request.virtual_pipeline_model_parallel_size = divides_into(config, chunks * pipeline_size) ? chunks : 1;
  request.placements = placements(config, spec);
  // Says what is wrong with layers that fit no placement, or with counts that do not add up.
  const bool is_vee = request.placements == std::vector{PlacementKind::kVee};
  pretrain_gpt::divide_layers(config, is_vee ? 2 * pipeline_size : pipeline_size);
  config.cost_file.empty() ? cost_by_layers(config, request) : cost_by_file(config.cost_file, request);
  limit_memory(config, request);
  request.time_budget_s = config.schedule_search_s;
  return request;
}

pretrain_gpt::ScheduleChoice choose(const pretrain_gpt::Config& config, int pipeline_size) {
  const AutoChoice choice = choose_schedule(auto_request(config, pipeline_size));
  std::ostringstream rows;
  print_rows(rows, choice.schedule.rows);
  return {rows.str(), fmt::format("{}: {} ({})", kAuto, choice.reason, origin_of_costs(config))};
}

Registry registry_with(const std::string& rows) {
  Registry registry = builtin_registry();
  registry.add(kAuto, [schedule = parse_schedule(rows, kAuto)](const ScheduleSpec&) { return schedule; });
  return registry;
}

}  // namespace dualpipe::libtorch_host
