// examples/pretrain_gpt/data/indexed_format.h
//
// Megatron's indexed data set: PREFIX.bin holds the tokens of all sequences, PREFIX.idx says where each is.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0", version u64 = 1, type code u8, number of sequences u64, number of document
// boundaries u64, then per sequence its length in tokens (i32), per sequence its offset in bytes in PREFIX.bin (i64),
// and the document boundaries as sequence indices (i64), the first of them 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace pretrain_gpt {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

enum class TokenType : std::uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

inline std::filesystem::path index_path(const std::string& prefix) { return prefix + ".idx"; }
inline std::filesystem::path tokens_path(const std::string& prefix) { return prefix + ".bin"; }

}  // namespace pretrain_gpt
