// examples/pretrain_gpt/checkpoint/find_checkpoint.h
//
// The newest checkpoint of a folder that is complete, by its hashes: the ranks divide the files among them, and all of
// them take the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/manifest.h"
#include "examples/pretrain_gpt/checkpoint/rank_exchange.h"

namespace pretrain_gpt {

struct FoundCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
};

struct CheckpointSearch {
  std::optional<FoundCheckpoint> found;   // Nothing: the folder has no checkpoints at all.
  std::vector<std::int64_t> passed_over;  // Newer ones that are damaged.
  std::vector<std::string> notes;         // A line for each, which says why.
};

// Collective. With `iteration`, of that alone. Throws CheckpointError, the same on all ranks, where there are
// checkpoints and all of them are damaged, or that one is or is not there; and where a rank cannot read one or does not
// see what the others see, since what is not damaged is never passed over.
CheckpointSearch find_checkpoint(RankExchange& exchange, const std::filesystem::path& load,
                                 std::optional<std::int64_t> iteration);

}  // namespace pretrain_gpt
