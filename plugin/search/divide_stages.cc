#include "plugin/search/divide_stages.h"

#include "plugin/analysis/divide_stages.h"

namespace dualpipe::search {

CostModel divide_costs(const CostModel& cost, int from_stages, int to_stages) {
  if (from_stages == to_stages) return cost;
  CostModel divided;
  divided.latency = cost.latency;
  divided.per_stage.assign(to_stages, StageCost{0, 0, 0, 0});
  analysis::for_each_share(from_stages, to_stages, [&](int to, int from, double share) {
    StageCost& sum = divided.per_stage[to];
    sum.forward += share * cost.of(from).forward;
    sum.backward_input += share * cost.of(from).backward_input;
    sum.backward_weight += share * cost.of(from).backward_weight;
    sum.overlapped += share * cost.of(from).overlapped;
  });
  if (cost.per_stage.empty()) {  // Equal but for rounding.
    divided.uniform = divided.per_stage[0];
    divided.per_stage.clear();
  }
  return divided;
}

std::vector<StageBytes> divide_bytes(const std::vector<StageBytes>& bytes, int to_stages) {
  std::vector<StageBytes> divided(bytes.empty() ? 0 : to_stages);
  analysis::for_each_share(static_cast<int>(bytes.size()), static_cast<int>(divided.size()),
                           [&](int to, int from, double share) {
                             divided[to].parameters += share * bytes[from].parameters;
                             divided[to].gradients += share * bytes[from].gradients;
                             divided[to].optimizer += share * bytes[from].optimizer;
                             divided[to].activations += share * bytes[from].activations;
                           });
  return divided;
}

}  // namespace dualpipe::search
