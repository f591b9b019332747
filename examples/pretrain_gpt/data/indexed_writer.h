// examples/pretrain_gpt/data/indexed_writer.h
//
// Writer of an indexed data set of byte tokens (examples/pretrain_gpt/data/indexed_format.h).
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace pretrain_gpt {

class IndexedWriter {
 public:
  // Makes the prefix's folder where needed. Throws UserError where the files cannot be written.
  explicit IndexedWriter(const std::string& prefix);

  // One document of one sequence; at most 2^31 - 1 tokens.
  void add_document(std::span<const std::uint8_t> tokens);

  // Writes the index and gives both files their names, so that a half-written data set is never seen under them.
  void finish();

 private:
  std::string prefix_;
  std::ofstream tokens_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> offsets_;
  std::int64_t end_ = 0;
};

}  // namespace pretrain_gpt
