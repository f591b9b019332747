#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "tests/analysis/slow_reference.h"

namespace dualpipe {
namespace {

struct Result {
  int rank;
  double end;
};

using Results = std::map<std::pair<char, std::pair<int, int>>, Result>;  // ('F' or 'B', (stage, micro-batch)).

std::vector<Op> ops_of(const Action& action) {
  return action.paired ? std::vector<Op>{action.op, *action.paired} : std::vector<Op>{action.op};
}

// When everything that `op` needs has come; nothing while it has not been computed.
std::optional<double> arrival(const Op& op, int rank, const Results& results, const Schedule& schedule,
                              double latency) {
  const bool forward = op.kind == Kind::kForward;
  const int source = forward ? op.stage - 1 : op.stage + 1;
  if (op.kind == Kind::kBackwardWeight || source < 0 || source >= schedule.placement.stages()) {
    return 0;
  }
  const auto found = results.find({forward ? 'F' : 'B', {source, op.micro_batch}});
  if (found == results.end()) {
    return std::nullopt;
  }
  return found->second.end + (found->second.rank == rank ? 0 : latency);
}

}  // namespace

std::vector<std::vector<double>> slow_simulate(const Schedule& schedule, const CostModel& cost) {
  const int ranks = static_cast<int>(schedule.rows.size());
  std::vector<std::vector<double>> starts(ranks);
  std::vector<double> free(ranks, 0);
  Results results;
  while (true) {
    int next = -1;
    double earliest = std::numeric_limits<double>::infinity();
    bool is_done = true;
    for (int rank = 0; rank < ranks; ++rank) {
      if (starts[rank].size() == schedule.rows[rank].size()) {
        continue;
      }
      is_done = false;
      double start = free[rank];
      bool is_ready = true;
      for (const Op& op : ops_of(schedule.rows[rank][starts[rank].size()])) {
        const std::optional<double> time = arrival(op, rank, results, schedule, cost.latency);
        is_ready = is_ready && time.has_value();
        start = std::max(start, time.value_or(0));
      }
      if (is_ready && start < earliest) {
        next = rank;
        earliest = start;
      }
    }
    if (next < 0) {
      return is_done ? starts : std::vector<std::vector<double>>{};
    }
    const Action& action = schedule.rows[next][starts[next].size()];
    starts[next].push_back(earliest);
    free[next] = earliest + cost.duration(action);
    for (const Op& op : ops_of(action)) {
      if (op.kind != Kind::kBackwardWeight) {
        results[{op.kind == Kind::kForward ? 'F' : 'B', {op.stage, op.micro_batch}}] = {next, free[next]};
      }
    }
  }
}

}  // namespace dualpipe
