#include "plugin/search/divide_stages.h"

#include <algorithm>

namespace dualpipe::search {
namespace {

// Calls visit(to, from, share) for all that overlap: `share` of stage `from` lies in stage `to`.
template <class Visit>
void for_each_share(int from_stages, int to_stages, Visit visit) {
  // In units of 1 / (from_stages * to_stages) of the model, so that all borders are integers.
  for (int to = 0; to < to_stages; ++to) {
    const long begin = static_cast<long>(to) * from_stages;
    const long end = begin + from_stages;
    for (long from = begin / to_stages; from * to_stages < end; ++from) {
      const long common = std::min(end, (from + 1) * to_stages) - std::max(begin, from * to_stages);
      visit(to, static_cast<int>(from), static_cast<double>(common) / to_stages);
    }
  }
}

}  // namespace

CostModel divide_costs(const CostModel& cost, int from_stages, int to_stages) {
  if (from_stages == to_stages) return cost;
  CostModel divided;
  divided.latency = cost.latency;
  divided.per_stage.assign(to_stages, StageCost{0, 0, 0, 0});
  for_each_share(from_stages, to_stages, [&](int to, int from, double share) {
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

std::vector<StageMemory> divide_memory(const std::vector<StageMemory>& memory, int to_stages) {
  std::vector<StageMemory> divided(memory.empty() ? 0 : to_stages);
  for_each_share(static_cast<int>(memory.size()), static_cast<int>(divided.size()),
                 [&](int to, int from, double share) {
                   divided[to].parameter_bytes += share * memory[from].parameter_bytes;
                   divided[to].activation_bytes += share * memory[from].activation_bytes;
                 });
  return divided;
}

}  // namespace dualpipe::search
