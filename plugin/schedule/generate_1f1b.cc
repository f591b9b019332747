#include <algorithm>

#include "plugin/schedule/generators.h"
#include "plugin/schedule/rules.h"

namespace dualpipe {
namespace {

Row one_forward_one_backward(int rank, int ranks, int num_microbatches) {
  const int warmup = std::min(ranks - 1 - rank, num_microbatches);
  Row row;
  row.reserve(2 * static_cast<std::size_t>(num_microbatches));
  for (int forward = 0; forward < warmup; ++forward) {
    row.push_back(single(make_op(rank, Kind::kForward, forward)));
  }
  for (int backward = 0; backward < num_microbatches; ++backward) {
    if (backward + warmup < num_microbatches) {
      row.push_back(single(make_op(rank, Kind::kForward, backward + warmup)));
    }
    row.push_back(single(make_op(rank, Kind::kBackward, backward)));
  }
  return row;
}

}  // namespace

Schedule generate_1f1b(const ScheduleSpec& spec) {
  require_sizes("1f1b", spec, 1);
  const int ranks = spec.pipeline_model_parallel_size;
  Schedule schedule{"1f1b", Placement::loop(ranks), spec.num_microbatches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.rows.push_back(one_forward_one_backward(rank, ranks, spec.num_microbatches));
  }
  return schedule;
}

}  // namespace dualpipe
