#include <algorithm>

#include "plugin/schedule/generators.h"
#include "plugin/schedule/rules.h"

namespace dualpipe {
namespace {

// 1F1B with split backwards, where W trails I by as many micro-batches as there are ranks before this one: the rank
// has that many more idle slots at the end, and W fills them.
Row zero_bubble(int rank, int ranks, int num_microbatches) {
  const int warmup = std::min(ranks - 1 - rank, num_microbatches);
  Row row;
  row.reserve(3 * static_cast<std::size_t>(num_microbatches));
  const auto put = [&](Kind kind, int micro_batch) {
    if (micro_batch >= 0 && micro_batch < num_microbatches) {
      row.push_back(single(make_op(rank, kind, micro_batch)));
    }
  };
  for (int forward = 0; forward < warmup; ++forward) {
    put(Kind::kForward, forward);
  }
  for (int backward = 0; backward < num_microbatches; ++backward) {
    put(Kind::kForward, backward + warmup);
    put(Kind::kBackwardInput, backward);
    put(Kind::kBackwardWeight, backward - rank);
  }
  for (int weight = std::max(num_microbatches - rank, 0); weight < num_microbatches; ++weight) {
    put(Kind::kBackwardWeight, weight);
  }
  return row;
}

}  // namespace

Schedule generate_zb1p(const ScheduleSpec& spec) {
  require_sizes("zb1p", spec, 1);
  const int ranks = spec.pipeline_model_parallel_size;
  Schedule schedule{"zb1p", Placement::loop(ranks), spec.num_microbatches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.rows.push_back(zero_bubble(rank, ranks, spec.num_microbatches));
  }
  return schedule;
}

}  // namespace dualpipe
