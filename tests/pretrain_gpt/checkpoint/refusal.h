// tests/pretrain_gpt/checkpoint/refusal.h
//
// The message of a refusal, and a folder for the test's files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {

inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "checkpoint_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace pretrain_gpt
