// examples/pretrain_gpt/checkpoint/safetensors_file.h
//
// Safetensors files on disk: written once, read tensor by tensor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/input_file.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_header.h"

namespace pretrain_gpt {

struct StoredTensor {
  std::string name, dtype;
  Shape shape;

  std::uint64_t bytes() const;
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256;
};

// Row-major bytes of tensor `index` of the list; valid until the next call.
using BytesOf = std::function<std::span<const std::byte>(std::size_t index)>;

// On the disk when it returns. Wider dtypes come first, so that every tensor is aligned. Throws CheckpointError.
WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const BytesOf& bytes_of);

class SafetensorsFile {
 public:
  // Reads the header. Throws CheckpointError.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }

  // The tensor `form.name`. Throws CheckpointError with file, name, wanted and given where it is not of that form.
  const SafetensorsEntry& find(const StoredTensor& form) const;

  // Bytes [from, from + into.size()) of it.
  void read(const SafetensorsEntry& entry, std::uint64_t from, std::span<std::byte> into) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

}  // namespace pretrain_gpt
