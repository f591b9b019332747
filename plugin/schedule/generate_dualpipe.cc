#include <array>
#include <string>
#include <string_view>

#include "plugin/schedule/error.h"
#include "plugin/schedule/folded_row.h"
#include "plugin/schedule/generators.h"
#include "plugin/schedule/rules.h"

namespace dualpipe {
namespace {

// Both fill the pipeline from its near end to the middle and back, twice over.
void require_two_per_rank(std::string_view schedule, const ScheduleSpec& spec) {
  const int least = 2 * spec.pipeline_model_parallel_size;
  if (spec.num_microbatches < least) {
    throw ScheduleError(schedule, "num_microbatches must be at least 2 x ranks = " + std::to_string(least) + ", got " +
                                      std::to_string(spec.num_microbatches));
  }
}

// The lanes of a rank of the near half; its mirror in the far half has the directions swapped.
std::array<Lane, 2> lanes_of(int depth, int stages, int first_of_near, int first_of_far) {
  return {Lane{depth, first_of_near}, Lane{stages - 1 - depth, first_of_far}};
}

}  // namespace

Schedule generate_dualpipe(const ScheduleSpec& spec) {
  constexpr std::string_view kName = "dualpipe";
  require_sizes(kName, spec, 1);
  require_even(kName, "pipeline_model_parallel_size", spec.pipeline_model_parallel_size);
  require_even(kName, "num_microbatches", spec.num_microbatches);
  require_two_per_rank(kName, spec);
  const int ranks = spec.pipeline_model_parallel_size;
  const int half = ranks / 2;
  const int split = spec.num_microbatches / 2;
  Schedule schedule{
      std::string(kName), Placement::bidirectional(ranks, spec.num_microbatches), spec.num_microbatches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const bool far = rank >= half;
    const int depth = far ? ranks - 1 - rank : rank;
    schedule.rows.push_back(folded_row({depth, half, split}, lanes_of(depth, ranks, far ? split : 0, far ? 0 : split)));
  }
  return schedule;
}

Schedule generate_dualpipev(const ScheduleSpec& spec) {
  constexpr std::string_view kName = "dualpipev";
  require_sizes(kName, spec, 2);
  require_two_per_rank(kName, spec);
  const int ranks = spec.pipeline_model_parallel_size;
  Schedule schedule{std::string(kName), Placement::vee(ranks), spec.num_microbatches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.rows.push_back(folded_row({rank, ranks, spec.num_microbatches}, lanes_of(rank, 2 * ranks, 0, 0)));
  }
  return schedule;
}

}  // namespace dualpipe
