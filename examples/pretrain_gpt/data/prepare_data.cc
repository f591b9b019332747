#include "examples/pretrain_gpt/data/prepare_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "examples/pretrain_gpt/data/indexed_writer.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;

bool is_taken(const fs::path& file, const std::vector<std::string>& extensions) {
  return extensions.empty() ||
         std::find(extensions.begin(), extensions.end(), file.extension().string()) != extensions.end();
}

std::vector<fs::path> files_below(const fs::path& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    if (entry.is_regular_file() && is_taken(entry.path(), extensions)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> input_files(const PrepareOptions& options) {
  std::vector<fs::path> files;
  for (const fs::path& input : options.inputs) {
    if (fs::is_directory(input)) {
      const std::vector<fs::path> below = files_below(input, options.extensions);
      files.insert(files.end(), below.begin(), below.end());
    } else if (fs::exists(input)) {
      files.push_back(input);
    } else {
      throw UserError(input.string(), "--input must name files or folders that exist; for example --input README.md");
    }
  }
  return files;
}

std::vector<std::uint8_t> read_document(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) {
    throw UserError(file.string(), "--input must be readable; leave it out or change its permissions");
  }
  if (!bytes.empty()) {
    bytes.push_back(static_cast<std::uint8_t>(kEndOfDocument));
  }
  return bytes;
}

}  // namespace

PreparedData prepare_data(const PrepareOptions& options) {
  PreparedData prepared;
  IndexedWriter writer(options.output);
  for (const fs::path& file : input_files(options)) {
    const std::vector<std::uint8_t> document = read_document(file);
    const std::int64_t tokens = prepared.tokens + static_cast<std::int64_t>(document.size());
    if (options.max_bytes && tokens > *options.max_bytes) {
      break;
    }
    if (!document.empty()) {
      writer.add_document(document);
      prepared = {prepared.documents + 1, tokens};
    }
  }
  if (prepared.documents == 0) {
    throw UserError(
        "--input",
        fmt::format(
            "must hold at least one file that is not empty{}, got none; for example "
            "--input README.md",
            options.extensions.empty() ? "" : fmt::format(" and ends in {}", fmt::join(options.extensions, " or "))));
  }
  writer.finish();
  return prepared;
}

}  // namespace pretrain_gpt
