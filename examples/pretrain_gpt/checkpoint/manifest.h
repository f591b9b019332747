// examples/pretrain_gpt/checkpoint/manifest.h
//
// What a checkpoint holds: its files with their hashes, and of every tensor of the model and the optimizer where in the
// files its pieces are. `manifest.json`, and beside it `manifest.json.sha256` as sha256sum prints it. No LibTorch.
//
//   {"format": "pretrain_gpt checkpoint", "version": 1, "iteration": 100, "consumed_samples": 1600, "seed": 1234,
//    "model": {"num_layers": "8", ...}, "data": {...}, "layout": {...},
//    "files": [{"name": "rank_00000.safetensors", "bytes": 4096, "sha256": "..."}, ...],
//    "tensors": {"layers.0.mlp.down.weight": {"dtype": "F32", "shape": [64, 192],
//                "pieces": [{"file": 0, "start": [0, 0], "size": [64, 96]}, ...]}, ...}}
//
// The seed is all the state that random numbers have: they are drawn by (seed, what for, step, layer, micro-batch). A
// tensor is in its file under its name, and where that is a piece, with its place:
// "layers.0.mlp.down.weight[0:64,0:96]".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/box.h"

namespace pretrain_gpt {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kManifestHashName = "manifest.json.sha256";

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string sha256;
};

struct ManifestPiece {
  std::size_t file = 0;  // Into Manifest::files.
  Box box;
};

struct ManifestTensor {
  std::string dtype;
  Shape shape;
  std::vector<ManifestPiece> pieces;  // Every element is in exactly one.
};

using Settings = std::map<std::string, std::string>;

struct Manifest {
  std::int64_t iteration = 0, consumed_samples = 0, seed = 0;
  Settings model, data, layout;  // Configuration: what has to be the same, and how the run was divided.
  std::vector<ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
};

std::string print_manifest(const Manifest& manifest);

// Throws CheckpointError(origin, ...): file names that are no plain names, numbers of files that there are not, pieces
// that do not make up their tensor.
Manifest parse_manifest(const std::string& text, const std::string& origin);

// "<sha256>  manifest.json\n"
std::string manifest_hash_line(const std::string& manifest);

// The tensor's name in the file of a piece.
std::string piece_name(const std::string& tensor, const Shape& shape, const Box& box);

}  // namespace pretrain_gpt
