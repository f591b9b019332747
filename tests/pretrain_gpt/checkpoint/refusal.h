// tests/pretrain_gpt/checkpoint/refusal.h
//
// The message of a refusal, and a folder for the test's files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "tests/support/temporary_folder.h"

namespace pretrain_gpt {

inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Whether it is refused for its bytes, and not because it cannot be read.
inline bool is_damage(const std::function<void()>& work) {
  try {
    work();
  } catch (const DamagedCheckpoint&) {
    return true;
  } catch (const CheckpointError&) {
  }
  return false;
}

// Removed at the end.
class Folder {
 public:
  std::filesystem::path path() const { return folder_.path(); }

 private:
  dualpipe::TemporaryFolder folder_;
};

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace pretrain_gpt
