// examples/pretrain_gpt/data/mapped_file.h
//
// A file's bytes, memory-mapped for reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace pretrain_gpt {

class MappedFile {
 public:
  // Throws UserError naming the file where it is missing, no plain file, or not readable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace pretrain_gpt
