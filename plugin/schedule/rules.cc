#include "plugin/schedule/rules.h"

#include <string>

#include "plugin/schedule/error.h"

namespace dualpipe {

void require_at_least(std::string_view origin, std::string_view what, int least, int value) {
  if (value < least) {
    throw ScheduleError(
        origin, std::string(what) + " must be at least " + std::to_string(least) + ", got " + std::to_string(value));
  }
}

void require_at_most(std::string_view origin, std::string_view what, int most, int value) {
  if (value > most) {
    throw ScheduleError(
        origin, std::string(what) + " must be at most " + std::to_string(most) + ", got " + std::to_string(value));
  }
}

void require_even(std::string_view origin, std::string_view what, int value) {
  if (value % 2 != 0) {
    throw ScheduleError(origin, std::string(what) + " must be even, got " + std::to_string(value) + "; " +
                                    std::to_string(value + 1) + " works");
  }
}

void require_sizes(std::string_view schedule, const ScheduleSpec& spec, int chunks_per_rank) {
  require_at_least(schedule, "pipeline_model_parallel_size", 1, spec.pipeline_model_parallel_size);
  require_at_least(schedule, "num_microbatches", 1, spec.num_microbatches);
  require_at_most(schedule, "pipeline_model_parallel_size", kMaxStages / chunks_per_rank,
                  spec.pipeline_model_parallel_size);
  require_at_most(schedule, "num_microbatches", kMaxMicrobatchesPerRank / chunks_per_rank, spec.num_microbatches);
}

}  // namespace dualpipe
