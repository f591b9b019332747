#include "plugin/schedule/infer_placement.h"

#include <algorithm>
#include <map>
#include <string>

#include "plugin/schedule/error.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe {
namespace {

template <typename Visit>
void for_each_op_of(const std::vector<Row>& rows, Visit visit) {
  for (int rank = 0; rank < static_cast<int>(rows.size()); ++rank) {
    for (const Action& action : rows[rank]) {
      for_each_op(action, [&](const Op& op) { visit(rank, op); });
    }
  }
}

// By stage: how many of its operations stand on which rank.
std::vector<std::map<int, long>> count_by_stage(const std::vector<Row>& rows) {
  std::vector<std::map<int, long>> counts;
  for_each_op_of(rows, [&](int rank, const Op& op) {
    if (counts.size() <= op.stage) {
      counts.resize(op.stage + 1);
    }
    ++counts[op.stage][rank];
  });
  return counts;
}

int rank_with_most(const std::map<int, long>& counts) {
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(counts.begin(), counts.end(), fewer)->first;
}

long operations_that_agree(const std::vector<Row>& rows, const Placement& placement) {
  long agree = 0;
  for_each_op_of(rows, [&](int rank, const Op& op) { agree += placement.rank_of(op.stage, op.micro_batch) == rank; });
  return agree;
}

// Ranks that hold no stage in the answer.
void require_no_idle_rank(const std::vector<int>& rank_of_stage, int ranks, std::string_view origin) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::find(rank_of_stage.begin(), rank_of_stage.end(), rank) == rank_of_stage.end()) {
      throw ScheduleError(origin, "each line must be the row of a rank that holds a stage of its own, line " +
                                      std::to_string(rank + 1) + " of " + std::to_string(ranks) + " holds none");
    }
  }
}

}  // namespace

Placement infer_placement(const std::vector<Row>& rows, int num_microbatches, std::string_view origin) {
  const int ranks = static_cast<int>(rows.size());
  const std::vector<std::map<int, long>> counts = count_by_stage(rows);
  std::vector<int> rank_of_stage;
  long agree = 0;
  for (const std::map<int, long>& count : counts) {
    if (count.empty()) {
      throw ScheduleError(origin, "stages must be numbered from 0 without a gap, stage " +
                                      std::to_string(rank_of_stage.size()) + " of " + std::to_string(counts.size()) +
                                      " stands nowhere");
    }
    rank_of_stage.push_back(rank_with_most(count));
    agree += count.at(rank_of_stage.back());
  }
  if (ranks % 2 == 0 && num_microbatches % 2 == 0 && static_cast<int>(counts.size()) == ranks) {
    Placement both_ends = Placement::bidirectional(ranks, num_microbatches);
    if (operations_that_agree(rows, both_ends) > agree) {
      return both_ends;
    }
  }
  require_no_idle_rank(rank_of_stage, ranks, origin);
  return Placement::custom(ranks, std::move(rank_of_stage));
}

}  // namespace dualpipe
