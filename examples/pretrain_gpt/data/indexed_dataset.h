// examples/pretrain_gpt/data/indexed_dataset.h
//
// Reader of an indexed data set (examples/pretrain_gpt/data/indexed_format.h): one stream of tokens, that of all its
// sequences in order. Files are memory-mapped; threads may read at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/data/indexed_format.h"
#include "examples/pretrain_gpt/data/mapped_file.h"

namespace pretrain_gpt {

class IndexedDataset {
 public:
  // Throws UserError, with sizes, where a file is missing, truncated or not of this format.
  explicit IndexedDataset(const std::string& prefix);

  std::int64_t num_tokens() const { return first_token_.back(); }
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(first_token_.size()) - 1; }
  std::int64_t num_documents() const { return num_documents_; }
  const std::string& prefix() const { return prefix_; }

  // Tokens [position, position + into.size()) of the stream, which must have them.
  void read(std::int64_t position, std::span<std::int64_t> into) const;

 private:
  void read_index();
  void check_index_size(std::uint64_t sequences, std::uint64_t boundaries) const;
  void check_tokens(std::span<const std::byte> lengths, std::uint64_t sequences);
  std::int64_t offset_of(std::int64_t sequence) const;

  std::string prefix_;
  MappedFile index_;
  MappedFile tokens_;
  TokenType type_ = TokenType::kUint8;
  std::size_t token_bytes_ = 1;
  std::span<const std::byte> offsets_;
  std::vector<std::int64_t> first_token_;  // Of each sequence in the stream; the last entry is the number of tokens.
  std::int64_t num_documents_ = 0;
};

}  // namespace pretrain_gpt
