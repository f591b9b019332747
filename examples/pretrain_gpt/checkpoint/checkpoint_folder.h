// examples/pretrain_gpt/checkpoint/checkpoint_folder.h
//
// The folder `save` and what is in it: iter_0000100 for a complete checkpoint, iter_0000100.tmp for one that is being
// written, iter_0000100.removed for one that is being removed, iter_0000100.damaged for one that was passed over. No
// LibTorch.
//
// A name without an ending is only ever given to a folder whose files are on the disk, and is given by one rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/manifest.h"

namespace pretrain_gpt {

std::filesystem::path checkpoint_path(const std::filesystem::path& save, std::int64_t iteration);
std::filesystem::path unfinished_path(const std::filesystem::path& save, std::int64_t iteration);

// Iterations of checkpoints without an ending, the newest first; none where the folder is not there.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& save);

// What there is to go on from, as this rank sees it: "iter_0000100 with manifest <sha256>", or "none". Of `iteration`
// where that is given, of the newest else. Throws CheckpointError where it cannot be read.
std::string describe_checkpoint(const std::filesystem::path& load, std::optional<std::int64_t> iteration);

// Reads the manifest and checks it against its hash, and that all files are there with their sizes. Throws
// DamagedCheckpoint with what is wrong, CheckpointError where it cannot be read or is of a kind that we do not know.
struct CheckedManifest {
  Manifest manifest;
  std::string sha256;  // Of manifest.json.
};
CheckedManifest read_manifest(const std::filesystem::path& checkpoint);

// Throws DamagedCheckpoint where the file's bytes are not those of the manifest.
void check_hash(const std::filesystem::path& checkpoint, const ManifestFile& file);

// What saves and removals that were cut off have left. Only while nothing is saved.
void remove_leftovers(const std::filesystem::path& save);

// Keeps the `keep` newest complete checkpoints, by what read_manifest() checks.
void remove_old_checkpoints(const std::filesystem::path& save, std::int64_t keep);

// Out of the way of newer ones, but not lost.
void set_aside(const std::filesystem::path& save, std::int64_t iteration);

}  // namespace pretrain_gpt
