#include "plugin/search/lanes.h"

#include <algorithm>

namespace dualpipe::search {
namespace {

int directions(const Placement& placement) { return placement.is_bidirectional() ? 2 : 1; }

Lane make_lane(const Placement& placement, int stage, int first_micro_batch, const StageCost& cost) {
  Lane lane;
  lane.rank = placement.rank_of(stage, first_micro_batch);
  lane.stage = stage;
  lane.first_micro_batch = first_micro_batch;
  lane.durations = {cost.forward, cost.backward_input + cost.backward_weight, cost.backward_input, cost.backward_weight,
                    cost.overlapped};
  return lane;
}

// `lane` is followed by lanes[next].
void link(std::vector<Lane>& lanes, int lane, int next, double latency) {
  const double between = lanes[lane].rank == lanes[next].rank ? 0 : latency;
  lanes[lane].next = next;
  lanes[lane].next_latency = between;
  lanes[next].previous = lane;
  lanes[next].previous_latency = between;
}

}  // namespace

Lanes::Lanes(const Placement& where, int micro_batches, const CostModel& cost, const Limits& limits)
    : placement(where),
      num_microbatches(micro_batches),
      per_lane(micro_batches / directions(where)),
      of_rank(where.ranks()),
      max_activations(limits.max_activations),
      counts_bytes(!limits.activation_bytes.empty()),
      room_bytes(limits.room_bytes) {
  const int stages = placement.stages();
  for (int direction = 0; direction < directions(placement); ++direction) {
    for (int stage = 0; stage < stages; ++stage) {
      const int index = static_cast<int>(lanes.size());
      lanes.push_back(make_lane(placement, stage, direction * per_lane, cost.of(stage)));
      lanes.back().activation_bytes = counts_bytes ? limits.activation_bytes[stage] : 0;
      of_rank[lanes.back().rank].push_back(index);
      if (stage > 0) link(lanes, index - 1, index, cost.latency);
    }
  }
}

}  // namespace dualpipe::search
