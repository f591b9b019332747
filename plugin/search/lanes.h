// plugin/search/lanes.h
//
// A placement under costs and limits as flat arrays, which is what the search works on.
//
// A lane is a stage on one rank, for the micro-batches of one direction: a rank has one per chunk, or one per direction
// under the bidirectional placement. Within a lane micro-batches are interchangeable, so the k-th F, the k-th B or I
// and the k-th W of a lane are those of its k-th micro-batch: no order is lost by that, since renumbering the
// micro-batches of any order this way keeps every start. An order of a rank is then a word whose letters name lanes
// alone.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/placement.h"
#include "plugin/search/letter.h"

namespace dualpipe::search {

struct Lane {
  int rank = 0;
  int stage = 0;
  int first_micro_batch = 0;
  int previous = -1;  // The lane whose F this one's F needs; -1 at the input. Its B or I needs that of `next`.
  int next = -1;
  double previous_latency = 0;  // 0 where the lane before is on the same rank.
  double next_latency = 0;
  std::array<double, kLetterKinds> durations{};  // By LetterKind; a pair's is that of its F's lane.
  double activation_bytes = 0;                   // Of a live micro-batch, where bytes count.
};

inline double duration(const Lane& lane, LetterKind kind) { return lane.durations[static_cast<std::size_t>(kind)]; }

// What an order may hold: both bounds count where both are given.
struct Limits {
  std::optional<int> max_activations;
  std::vector<double> activation_bytes;  // By stage; empty: bytes do not count.
  std::vector<double> room_bytes;        // By rank: what parameters leave for activations.
};

struct Lanes {
  Lanes(const Placement& placement, int num_microbatches, const CostModel& cost, const Limits& limits);

  Placement placement;
  int num_microbatches;  // Over all directions.
  int per_lane;
  std::vector<Lane> lanes;
  std::vector<std::vector<int>> of_rank;  // Ascending stage; direction 0 first.
  std::optional<int> max_activations;
  bool counts_bytes;
  std::vector<double> room_bytes;  // By rank, where bytes count.

  int ranks() const { return static_cast<int>(of_rank.size()); }
};

}  // namespace dualpipe::search
