// examples/pretrain_gpt/checkpoint/input_file.h
//
// A plain file that is read at given places. Never through a symbolic link, which could lead out of its folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace pretrain_gpt {

class InputFile {
 public:
  // Throws DamagedCheckpoint where it is missing or no plain file, CheckpointError where it cannot be read.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // When it was opened.

  // Throws DamagedCheckpoint where the file ends before, CheckpointError where it cannot be read.
  void read(std::uint64_t place, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

// Throws DamagedCheckpoint where it is larger than `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t most_bytes);

std::string sha256_of_file(const InputFile& file);

}  // namespace pretrain_gpt
