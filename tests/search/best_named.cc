#include "tests/search/best_named.h"

#include <algorithm>

#include "plugin/analysis/memory.h"
#include "plugin/analysis/simulate.h"
#include "plugin/schedule/registry.h"

namespace dualpipe {
namespace {

struct Rule {
  const char* name;
  PlacementKind kind;
  bool allows;
};

std::vector<Rule> rules_for(int ranks, int micro_batches) {
  const bool fills = micro_batches >= 2 * ranks;
  return {{"1f1b", PlacementKind::kLoop, true},
          {"zb1p", PlacementKind::kLoop, true},
          {"interleaved_1f1b", PlacementKind::kLoop, micro_batches % ranks == 0},
          {"dualpipe", PlacementKind::kBidirectional, ranks % 2 == 0 && micro_batches % 2 == 0 && fills},
          {"dualpipev", PlacementKind::kVee, fills}};
}

bool asks_for_vee_alone(const AutoRequest& request) {
  return request.placements == std::vector<PlacementKind>{PlacementKind::kVee};
}

bool asks_for(const AutoRequest& request, PlacementKind kind) {
  return request.placements.empty() || std::ranges::find(request.placements, kind) != request.placements.end();
}

// Calls add(to, from, share) for each 2P-th of the model.
template <class Add>
void add_halves(int ranks, int from, int stages, Add add) {
  const int halves = 2 * ranks;
  for (int half = 0; half < halves; ++half) {
    add(half * stages / halves, half * from / halves, static_cast<double>(from) / halves);
  }
}

CostModel costs_of(const AutoRequest& request, int stages) {
  const int ranks = request.pipeline_model_parallel_size;
  const int uniform = asks_for_vee_alone(request) ? 2 * ranks : ranks;
  const int from = request.cost.per_stage.empty() ? uniform : static_cast<int>(request.cost.per_stage.size());
  CostModel cost;
  cost.latency = request.cost.latency;
  cost.per_stage.assign(stages, {0, 0, 0, 0});
  add_halves(ranks, from, stages, [&](int to, int given, double share) {
    StageCost& sum = cost.per_stage[to];
    sum.forward += share * request.cost.of(given).forward;
    sum.backward_input += share * request.cost.of(given).backward_input;
    sum.backward_weight += share * request.cost.of(given).backward_weight;
    sum.overlapped += share * request.cost.of(given).overlapped;
  });
  return cost;
}

std::vector<StageBytes> bytes_of(const AutoRequest& request, int stages) {
  std::vector<StageBytes> bytes(stages);
  add_halves(request.pipeline_model_parallel_size, static_cast<int>(request.bytes.size()), stages,
             [&](int to, int given, double share) {
               bytes[to].parameters += share * request.bytes[given].state();
               bytes[to].activations += share * request.bytes[given].activations;
             });
  return bytes;
}

bool fits(const Schedule& schedule, const AutoRequest& request) {
  const int stages = schedule.placement.stages();
  if (request.max_activations) {
    const int unit = request.pipeline_model_parallel_size * (asks_for_vee_alone(request) ? 2 : 1);
    if (std::ranges::max(peak_activations(schedule)) * unit > *request.max_activations * stages) return false;
  }
  if (!request.memory_limit_gb) return true;
  return std::ranges::all_of(memory_of(schedule, bytes_of(request, stages)), [&](const RankMemory& rank) {
    return rank.total() <= *request.memory_limit_gb * 1e9 * (1 - 1e-12);
  });
}

}  // namespace

std::optional<double> best_named_makespan(const AutoRequest& request) {
  const int ranks = request.pipeline_model_parallel_size;
  std::optional<double> best;
  for (const Rule& rule : rules_for(ranks, request.num_microbatches)) {
    if (!rule.allows || !asks_for(request, rule.kind)) continue;
    const Schedule schedule = builtin_registry().make(rule.name, {ranks, request.num_microbatches, 2});
    if (!fits(schedule, request)) continue;
    const double makespan = simulate(schedule, costs_of(request, schedule.placement.stages())).makespan();
    best = std::min(best.value_or(makespan), makespan);
  }
  return best;
}

}  // namespace dualpipe
