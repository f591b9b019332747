#include "plugin/analysis/memory.h"

#include <algorithm>
#include <string>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

bool ends_activation(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardWeight; }

double peak_of(const Row& row, const std::vector<StageBytes>& bytes) {
  double live = 0;
  double peak = 0;
  for (const Action& action : row) {
    if (action.op.kind == Kind::kForward) {
      live += bytes[action.op.stage].activations;
      peak = std::max(peak, live);
    }
    if (const Op& last = action.paired ? *action.paired : action.op; ends_activation(last.kind)) {
      live -= bytes[last.stage].activations;
    }
  }
  return peak;
}

RankMemory memory_of(const Schedule& schedule, int rank, const std::vector<StageBytes>& bytes) {
  RankMemory memory;
  for (const int stage : schedule.placement.stages_of(rank)) {
    memory.parameters += bytes[stage].parameters;
    memory.gradients += bytes[stage].gradients;
    memory.optimizer += bytes[stage].optimizer;
  }
  memory.activations = peak_of(schedule.rows.at(rank), bytes);
  return memory;
}

}  // namespace

std::vector<RankMemory> memory_of(const Schedule& schedule, const std::vector<StageBytes>& bytes) {
  const int stages = schedule.placement.stages();
  if (static_cast<int>(bytes.size()) != stages) {
    throw ScheduleError("memory", "bytes must have one entry per stage = " + std::to_string(stages) + ", got " +
                                      std::to_string(bytes.size()));
  }
  std::vector<RankMemory> memory;
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    memory.push_back(memory_of(schedule, rank, bytes));
  }
  return memory;
}

}  // namespace dualpipe
