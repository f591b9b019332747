#include "plugin/search/check_request.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "plugin/schedule/error.h"
#include "plugin/schedule/rules.h"

namespace dualpipe::search {
namespace {

constexpr std::string_view kOrigin = "auto";

std::string text(double value) {
  if (value > kMostCost) return "more";
  std::string digits = std::to_string(value);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.ends_with('.')) digits.pop_back();
  return digits;
}

void require_number(std::string_view what, double value) {
  if (!std::isfinite(value) || value < 0) {
    throw ScheduleError(kOrigin, std::string(what) + " must be a finite number of at least 0, got " + text(value));
  }
  if (value > kMostCost) throw ScheduleError(kOrigin, std::string(what) + " must be at most 1e15, got " + text(value));
}

void require_positive(std::string_view what, double value, std::string_view example) {
  if (!std::isfinite(value) || value <= 0) {
    throw ScheduleError(kOrigin, std::string(what) + " must be a finite number above 0, such as " +
                                     std::string(example) + ", got " + text(value));
  }
}

void check_cost(const StageCost& cost) {
  require_number("the cost of a forward", cost.forward);
  require_number("the cost of a backward_input", cost.backward_input);
  require_number("the cost of a backward_weight", cost.backward_weight);
  require_number("the cost of an overlapped pair", cost.overlapped);
}

void check_costs(const AutoRequest& request) {
  check_cost(request.cost.uniform);
  for (const StageCost& cost : request.cost.per_stage) check_cost(cost);
  require_number("the latency", request.cost.latency);
  if (request.cost_stages) require_at_least(kOrigin, "cost_stages", 1, *request.cost_stages);
  const int given = static_cast<int>(request.cost.per_stage.size());
  if (given > 0 && request.cost_stages.value_or(given) != given) {
    throw ScheduleError(kOrigin, "cost_stages must be the number of per_stage costs = " + std::to_string(given) +
                                     ", got " + std::to_string(*request.cost_stages));
  }
}

void check_limits(const AutoRequest& request) {
  if (request.max_activations) require_at_least(kOrigin, "max_activations", 1, *request.max_activations);
  for (const StageBytes& stage : request.bytes) {
    require_number("the parameter bytes of a stage", stage.parameters);
    require_number("the gradient bytes of a stage", stage.gradients);
    require_number("the optimizer bytes of a stage", stage.optimizer);
    require_number("the activation bytes of a stage", stage.activations);
  }
  if (!request.memory_limit_gb) return;
  require_positive("memory_limit_gb", *request.memory_limit_gb, "80");
  if (request.bytes.empty()) {
    throw ScheduleError(kOrigin,
                        "memory_limit_gb needs the bytes of each stage, which a cost file of 'dualpipe profile' holds, "
                        "got none; max_activations needs no bytes");
  }
}

}  // namespace

void check_request(const AutoRequest& request) {
  require_at_least(kOrigin, "virtual_pipeline_model_parallel_size", 1, request.virtual_pipeline_model_parallel_size);
  ScheduleSpec largest{request.pipeline_model_parallel_size, request.num_microbatches, 2};
  require_sizes(kOrigin, largest, std::max(2, request.virtual_pipeline_model_parallel_size));
  check_costs(request);
  check_limits(request);
  if (request.evaluations && *request.evaluations < 0) {
    throw ScheduleError(kOrigin, "search evaluations must be at least 0, got " + std::to_string(*request.evaluations));
  }
  require_positive("the time budget", request.time_budget_s, "20");
  require_at_least(kOrigin, "threads", 1, request.threads);
}

int cost_stages(const AutoRequest& request) {
  if (!request.cost.per_stage.empty()) return static_cast<int>(request.cost.per_stage.size());
  return request.cost_stages.value_or(activation_stages(request));
}

int activation_stages(const AutoRequest& request) {
  const bool only_vee =
      !request.placements.empty() && std::all_of(request.placements.begin(), request.placements.end(),
                                                 [](PlacementKind kind) { return kind == PlacementKind::kVee; });
  return request.pipeline_model_parallel_size * (only_vee ? 2 : 1);
}

}  // namespace dualpipe::search
