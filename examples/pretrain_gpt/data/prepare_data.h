// examples/pretrain_gpt/data/prepare_data.h
//
// `pretrain_gpt prepare-data`: text files to an indexed data set of byte tokens. A file is a document; a 0 byte ends
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pretrain_gpt {

inline constexpr std::int64_t kEndOfDocument = 0;

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;  // Files, and folders that are searched with all their subfolders.
  std::string output;                         // Prefix of the .bin and .idx files.
  std::vector<std::string> extensions;        // Which files of a folder are taken, ".py"; empty: all.
  std::optional<std::int64_t> max_bytes;      // Stop before the file that would exceed it.
};

struct PreparedData {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

// Files come in the order of the inputs, those of a folder sorted by path; empty ones are left out. Throws UserError
// where an input is missing or unreadable, or nothing is left.
PreparedData prepare_data(const PrepareOptions& options);

}  // namespace pretrain_gpt
