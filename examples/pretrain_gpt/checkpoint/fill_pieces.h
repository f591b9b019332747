// examples/pretrain_gpt/checkpoint/fill_pieces.h
//
// From a checkpoint's files into a rank's tensors, however the ranks that wrote them were divided.
#pragma once

#include <filesystem>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/held_state.h"
#include "examples/pretrain_gpt/checkpoint/manifest.h"

namespace pretrain_gpt {

// Reads what the pieces have in common with the files' and no other rows. match_tensors() has seen the pieces. Throws
// CheckpointError where a file is not as the manifest says; some pieces are filled by then.
void fill_pieces(const std::filesystem::path& checkpoint, const Manifest& manifest,
                 const std::vector<HeldPiece>& pieces);

}  // namespace pretrain_gpt
