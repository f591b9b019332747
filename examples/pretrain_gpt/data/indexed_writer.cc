#include "examples/pretrain_gpt/data/indexed_writer.h"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>

#include "examples/pretrain_gpt/data/indexed_format.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::filesystem::path unfinished(const std::filesystem::path& file) { return file.string() + ".part"; }

std::ofstream open_for_writing(const std::filesystem::path& file) {
  std::error_code ignored;
  if (file.has_parent_path()) {
    std::filesystem::create_directories(file.parent_path(), ignored);
  }
  std::ofstream stream(file, std::ios::binary);
  if (!stream) {
    throw UserError(file.string(), "--output must be a prefix of files that can be written; for example data/text");
  }
  return stream;
}

template <typename T>
void write(std::ofstream& stream, const T* values, std::size_t count) {
  stream.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
}

template <typename T>
void write(std::ofstream& stream, T value) {
  write(stream, &value, 1);
}

void close(std::ofstream& stream, const std::filesystem::path& file) {
  stream.close();
  if (!stream) {
    throw UserError(file.string(), "must be written in full, but the disk refused; free some space");
  }
}

}  // namespace

IndexedWriter::IndexedWriter(const std::string& prefix)
    : prefix_(prefix), tokens_(open_for_writing(unfinished(tokens_path(prefix)))) {}

void IndexedWriter::add_document(std::span<const std::uint8_t> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw UserError(prefix_,
                    fmt::format("a document must have at most 2^31 - 1 tokens, got {}; split it", tokens.size()));
  }
  write(tokens_, tokens.data(), tokens.size());
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  offsets_.push_back(end_);
  end_ += static_cast<std::int64_t>(tokens.size());
}

void IndexedWriter::finish() {
  close(tokens_, tokens_path(prefix_));
  std::ofstream index = open_for_writing(unfinished(index_path(prefix_)));
  write(index, kIndexMagic.data(), kIndexMagic.size());
  write(index, kIndexVersion);
  write(index, TokenType::kUint8);
  write<std::uint64_t>(index, lengths_.size());
  write<std::uint64_t>(index, lengths_.size() + 1);
  write(index, lengths_.data(), lengths_.size());
  write(index, offsets_.data(), offsets_.size());
  std::vector<std::int64_t> boundaries(lengths_.size() + 1);
  std::iota(boundaries.begin(), boundaries.end(), std::int64_t{0});
  write(index, boundaries.data(), boundaries.size());
  close(index, index_path(prefix_));
  std::filesystem::rename(unfinished(tokens_path(prefix_)), tokens_path(prefix_));
  std::filesystem::rename(unfinished(index_path(prefix_)), index_path(prefix_));
}

}  // namespace pretrain_gpt
