#include <algorithm>
#include <string>
#include <string_view>

#include "plugin/schedule/error.h"
#include "plugin/schedule/generators.h"
#include "plugin/schedule/rules.h"

namespace dualpipe {
namespace {

struct Interleaving {
  int ranks;
  int chunks;
  int num_microbatches;

  int count() const { return chunks * num_microbatches; }

  // The chunk and micro-batch of a rank's step-th forward: groups of P micro-batches, each group once through every
  // chunk. Backwards go through the chunks the other way round.
  Op forward(int rank, int step) const { return op(rank, Kind::kForward, step / ranks % chunks, step); }
  Op backward(int rank, int step) const { return op(rank, Kind::kBackward, chunks - 1 - step / ranks % chunks, step); }

 private:
  Op op(int rank, Kind kind, int chunk, int step) const {
    return make_op(chunk * ranks + rank, kind, step / (ranks * chunks) * ranks + step % ranks);
  }
};

Row interleave(const Interleaving& order, int rank) {
  const int warmup = std::min((order.chunks - 1) * order.ranks + 2 * (order.ranks - 1 - rank), order.count());
  Row row;
  row.reserve(2 * static_cast<std::size_t>(order.count()));
  for (int step = 0; step < warmup; ++step) {
    row.push_back(single(order.forward(rank, step)));
  }
  for (int step = 0; step < order.count(); ++step) {
    if (step + warmup < order.count()) {
      row.push_back(single(order.forward(rank, step + warmup)));
    }
    row.push_back(single(order.backward(rank, step)));
  }
  return row;
}

void require_rules(const ScheduleSpec& spec) {
  constexpr std::string_view kName = "interleaved_1f1b";
  require_at_least(kName, "virtual_pipeline_model_parallel_size", 2, spec.virtual_pipeline_model_parallel_size);
  require_at_most(kName, "virtual_pipeline_model_parallel_size", kMaxStages, spec.virtual_pipeline_model_parallel_size);
  require_sizes(kName, spec, spec.virtual_pipeline_model_parallel_size);
  const int ranks = spec.pipeline_model_parallel_size;
  if (spec.num_microbatches % ranks != 0) {
    throw ScheduleError(kName, "num_microbatches must be a multiple of pipeline_model_parallel_size = " +
                                   std::to_string(ranks) + ", got " + std::to_string(spec.num_microbatches) + "; " +
                                   std::to_string((spec.num_microbatches / ranks + 1) * ranks) + " works");
  }
}

}  // namespace

Schedule generate_interleaved_1f1b(const ScheduleSpec& spec) {
  require_rules(spec);
  const Interleaving order{spec.pipeline_model_parallel_size, spec.virtual_pipeline_model_parallel_size,
                           spec.num_microbatches};
  Schedule schedule{"interleaved_1f1b", Placement::loop(order.ranks, order.chunks), order.num_microbatches, {}};
  for (int rank = 0; rank < order.ranks; ++rank) {
    schedule.rows.push_back(interleave(order, rank));
  }
  return schedule;
}

}  // namespace dualpipe
