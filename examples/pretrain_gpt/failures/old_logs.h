// examples/pretrain_gpt/failures/old_logs.h
//
// Logs of an earlier attempt at a run, which must not be taken for this one's.
#pragma once

#include <filesystem>

namespace pretrain_gpt {

// Removes ring_rank<R>.jsonl (docs/run_files.md) of this rank from `folder` and, on rank 0, those of ranks that this
// run does not have. What cannot be removed stays.
void remove_old_logs(const std::filesystem::path& folder, int rank, int world_size);

}  // namespace pretrain_gpt
