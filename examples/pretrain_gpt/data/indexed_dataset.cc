#include "examples/pretrain_gpt/data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::size_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

template <typename T>
void widen(const std::byte* from, std::span<std::int64_t> into) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    into[i] = static_cast<std::int64_t>(token);
  }
}

void widen(TokenType type, const std::byte* from, std::span<std::int64_t> into) {
  switch (type) {
    case TokenType::kUint8:
      return widen<std::uint8_t>(from, into);
    case TokenType::kInt8:
      return widen<std::int8_t>(from, into);
    case TokenType::kInt16:
      return widen<std::int16_t>(from, into);
    case TokenType::kUint16:
      return widen<std::uint16_t>(from, into);
    case TokenType::kInt32:
      return widen<std::int32_t>(from, into);
    case TokenType::kInt64:
      return widen<std::int64_t>(from, into);
  }
}

// Where a sequence ends in the file; the greatest number there is where that is beyond it.
std::int64_t end_of(std::int64_t offset, std::int64_t bytes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return offset > kMost - bytes ? kMost : offset + bytes;
}

constexpr const char* kAgain = "make the data again with `pretrain_gpt prepare-data`";

}  // namespace

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), index_(index_path(prefix)), tokens_(tokens_path(prefix)) {
  read_index();
}

void IndexedDataset::read_index() {
  const std::span<const std::byte> bytes = index_.bytes();
  const std::string file = index_path(prefix_).string();
  if (bytes.size() < kIndexHeaderBytes) {
    throw UserError(file, fmt::format("must hold a header of {} bytes, got a file of {} bytes; {}", kIndexHeaderBytes,
                                      bytes.size(), kAgain));
  }
  if (std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) != 0 ||
      load<std::uint64_t>(bytes, 9) != kIndexVersion) {
    throw UserError(file, fmt::format("must start with MMIDIDX and version 1, got something else; {}", kAgain));
  }
  type_ = static_cast<TokenType>(load<std::uint8_t>(bytes, 17));
  token_bytes_ = bytes_of(type_);
  if (token_bytes_ == 0) {
    throw UserError(file, fmt::format("must hold integer tokens (type code 1, 2, 3, 4, 5 or 8), got code {}; {}",
                                      static_cast<int>(type_), kAgain));
  }
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto boundaries = load<std::uint64_t>(bytes, 26);
  check_index_size(sequences, boundaries);
  num_documents_ = static_cast<std::int64_t>(boundaries) - 1;
  offsets_ = bytes.subspan(kIndexHeaderBytes + 4 * sequences, 8 * sequences);
  check_tokens(bytes.subspan(kIndexHeaderBytes, 4 * sequences), sequences);
}

void IndexedDataset::check_index_size(std::uint64_t sequences, std::uint64_t boundaries) const {
  const std::uint64_t most = index_.bytes().size();  // Keeps the sum below from wrapping.
  const std::uint64_t wanted = kIndexHeaderBytes + 12 * sequences + 8 * boundaries;
  if (sequences > most || boundaries > most || boundaries == 0 || wanted != most) {
    throw UserError(
        index_path(prefix_).string(),
        fmt::format("must hold {} bytes for {} sequences and {} document boundaries, got a file of {} bytes; {}",
                    wanted, sequences, boundaries, most, kAgain));
  }
}

void IndexedDataset::check_tokens(std::span<const std::byte> lengths, std::uint64_t sequences) {
  first_token_.assign(1, 0);
  first_token_.reserve(sequences + 1);
  std::int64_t end = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto length = load<std::int32_t>(lengths, 4 * i);
    const std::int64_t offset = offset_of(static_cast<std::int64_t>(i));
    if (length < 0 || offset < 0) {
      throw UserError(index_path(prefix_).string(),
                      fmt::format("must hold lengths and offsets of at least 0, got {} and {} "
                                  "for sequence {}; {}",
                                  length, offset, i, kAgain));
    }
    first_token_.push_back(first_token_.back() + length);
    end = std::max(end, end_of(offset, length * static_cast<std::int64_t>(token_bytes_)));
  }
  const auto size = static_cast<std::int64_t>(tokens_.bytes().size());
  if (size < end) {
    throw UserError(tokens_path(prefix_).string(),
                    fmt::format("must hold {} bytes as {} says, got a file of {} bytes; {}", end,
                                index_path(prefix_).string(), size, kAgain));
  }
}

std::int64_t IndexedDataset::offset_of(std::int64_t sequence) const {
  return load<std::int64_t>(offsets_, 8 * static_cast<std::size_t>(sequence));
}

void IndexedDataset::read(std::int64_t position, std::span<std::int64_t> into) const {
  auto sequence = std::upper_bound(first_token_.begin(), first_token_.end(), position) - first_token_.begin() - 1;
  while (!into.empty()) {
    const std::int64_t within = position - first_token_.at(sequence);
    const std::int64_t left = first_token_.at(sequence + 1) - position;
    const std::size_t count = std::min<std::size_t>(into.size(), static_cast<std::size_t>(left));
    const std::size_t offset =
        static_cast<std::size_t>(offset_of(sequence)) + static_cast<std::size_t>(within) * token_bytes_;
    widen(type_, tokens_.bytes().data() + offset, into.first(count));
    into = into.subspan(count);
    position += static_cast<std::int64_t>(count);
    ++sequence;
  }
}

}  // namespace pretrain_gpt
