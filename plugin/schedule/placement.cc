#include "plugin/schedule/placement.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "plugin/schedule/error.h"
#include "plugin/schedule/rules.h"

namespace dualpipe {
namespace {

constexpr std::string_view kOrigin = "placement";

// The number of stages, where each rank holds `per_rank` of them.
int count_stages(int ranks, int per_rank) {
  require_at_least(kOrigin, "ranks", 1, ranks);
  require_at_least(kOrigin, "chunks per rank", 1, per_rank);
  require_at_most(kOrigin, "chunks per rank", kMaxStages, per_rank);
  require_at_most(kOrigin, "ranks", kMaxStages / per_rank, ranks);
  return ranks * per_rank;
}

// Every rank holds a stage.
void require_no_idle_rank(int ranks, const std::vector<int>& rank_of_stage) {
  std::vector<bool> holds(ranks, false);
  for (const int rank : rank_of_stage) {
    holds[rank] = true;
  }
  const auto idle = std::find(holds.begin(), holds.end(), false);
  if (idle != holds.end()) {
    throw ScheduleError(kOrigin, "every rank must hold a stage, rank " + std::to_string(idle - holds.begin()) + " of " +
                                     std::to_string(ranks) + " holds none");
  }
}

}  // namespace

Placement::Placement(int ranks, int stages, int directions, int split, std::vector<int> table)
    : ranks_(ranks), stages_(stages), directions_(directions), split_(split), table_(std::move(table)) {
  check(table_.size() == static_cast<std::size_t>(stages_) * directions_, "one rank per direction and stage");
}

Placement Placement::loop(int ranks, int chunks_per_rank) {
  std::vector<int> table(count_stages(ranks, chunks_per_rank));
  for (int stage = 0; stage < static_cast<int>(table.size()); ++stage) {
    table[stage] = stage % ranks;
  }
  return Placement(ranks, ranks * chunks_per_rank, 1, 0, std::move(table));
}

Placement Placement::vee(int ranks) {
  std::vector<int> table(count_stages(ranks, 2));
  for (int rank = 0; rank < ranks; ++rank) {
    table[rank] = rank;
    table[2 * ranks - 1 - rank] = rank;
  }
  return Placement(ranks, 2 * ranks, 1, 0, std::move(table));
}

Placement Placement::bidirectional(int ranks, int num_microbatches) {
  const int stages = count_stages(ranks, 1);
  require_even(kOrigin, "ranks of a bidirectional placement", ranks);
  require_even(kOrigin, "num_microbatches of a bidirectional placement", num_microbatches);
  std::vector<int> table(2 * static_cast<std::size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    table[stage] = stage;
    table[stages + stage] = ranks - 1 - stage;
  }
  return Placement(ranks, stages, 2, num_microbatches / 2, std::move(table));
}

Placement Placement::custom(int ranks, std::vector<int> rank_of_stage) {
  count_stages(ranks, 1);
  const int stages = static_cast<int>(rank_of_stage.size());
  require_at_most(kOrigin, "stages", kMaxStages, stages);
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = rank_of_stage[stage];
    if (rank < 0 || rank >= ranks) {
      throw ScheduleError(kOrigin, "the rank of stage " + std::to_string(stage) + " must be in 0.." +
                                       std::to_string(ranks - 1) + ", got " + std::to_string(rank));
    }
  }
  require_no_idle_rank(ranks, rank_of_stage);
  return Placement(ranks, stages, 1, 0, std::move(rank_of_stage));
}

std::vector<int> Placement::stages_of(int rank) const {
  std::vector<int> stages;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i] == rank) {
      stages.push_back(static_cast<int>(i % stages_));
    }
  }
  return stages;
}

std::vector<int> Placement::ranks_of(int stage) const {
  std::vector<int> ranks;
  for (int direction = 0; direction < directions_; ++direction) {
    ranks.push_back(table_[direction * stages_ + stage]);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::optional<int> Placement::mirror_of(int rank) const {
  if (!is_bidirectional()) {
    return std::nullopt;
  }
  return ranks_ - 1 - rank;
}

}  // namespace dualpipe
