// examples/pretrain_gpt/schedule_choice.h
//
// A schedule that is still to be chosen (ScheduleEntry::choose): rank 0 chooses, and all ranks go on with its choice.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "examples/pretrain_gpt/schedule_registry.h"

namespace pretrain_gpt {

// Collective, once per run; `config` is resolved and the same on every rank. What rank 0 throws it alone throws: the
// others wait for it, as long as the store does.
ScheduleChoice choose_on_first_rank(const ScheduleEntry& entry, const Config& config, c10d::Store& store, int rank);

// <output_dir>/schedule.csv, a line per pipeline rank: the choice as a schedule of its own.
std::filesystem::path write_rows(const ScheduleChoice& choice, const std::filesystem::path& output_dir);

}  // namespace pretrain_gpt
