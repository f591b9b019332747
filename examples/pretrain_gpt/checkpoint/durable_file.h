// examples/pretrain_gpt/checkpoint/durable_file.h
//
// Files and folders that are on the disk when a call returns, and not just on their way there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace pretrain_gpt {

// A new file, written from its beginning to its end. All calls throw CheckpointError with the file and the cause.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& path);  // Refuses one that is there.
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void finish();  // On the disk from here on.

 private:
  void check(bool holds) const;

  std::filesystem::path path_;
  int descriptor_;
};

void write_durably(const std::filesystem::path& path, const std::string& text);

// What a folder lists is a thing of its own.
void sync_folder(const std::filesystem::path& folder);

// Makes a folder and all those above it that are missing. Gives the folders in which one was made, the outermost first:
// each lists something new. `error` is of std::filesystem.
std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder, std::error_code& error);

// The same, on the disk.
void make_folders_durably(const std::filesystem::path& folder, std::error_code& error);

// Both are in the same folder, and `to` is not there.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace pretrain_gpt
