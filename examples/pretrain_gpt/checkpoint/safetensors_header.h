// examples/pretrain_gpt/checkpoint/safetensors_header.h
//
// The header of a safetensors file: its length (8 bytes, little-endian), then JSON from each tensor's name to its
// dtype, shape and place in the data behind it. No LibTorch.
//
// What is read is taken for hostile: no length, offset or product is trusted, nothing is allocated that the file is not
// as large as, and data without a hole or an overlap is all that passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "examples/pretrain_gpt/checkpoint/box.h"

namespace pretrain_gpt {

// "F32", "BF16", "I64" ...; nothing where the format has no such dtype.
std::optional<std::int64_t> dtype_bytes(const std::string& dtype);

struct SafetensorsEntry {
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // Bytes of the data.
};

struct SafetensorsHeader {
  std::uint64_t data_begin = 0;  // Bytes before the data.
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

inline constexpr std::size_t kSafetensorsLengthBytes = 8;
inline constexpr std::uint64_t kMostSafetensorsHeaderBytes = 100'000'000;  // The published reader's limit.

// Bytes before the data, from the file's first kSafetensorsLengthBytes.
std::uint64_t safetensors_data_begin(std::span<const std::byte> start, std::uint64_t file_bytes,
                                     const std::string& origin);

// `start` has at least the bytes before the data, of a file of file_bytes. Throws CheckpointError(origin, ...).
SafetensorsHeader parse_safetensors(std::span<const std::byte> start, std::uint64_t file_bytes,
                                    const std::string& origin);

// The bytes before the data, a multiple of 8.
std::string print_safetensors(const SafetensorsHeader& header);

}  // namespace pretrain_gpt
