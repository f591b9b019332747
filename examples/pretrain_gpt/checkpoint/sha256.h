// examples/pretrain_gpt/checkpoint/sha256.h
//
// SHA-256 (FIPS 180-4) of bytes that come in pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pretrain_gpt {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);

  // The digest of all that was added, as 64 lower-case digits. Ends this hash.
  std::string finish();

 private:
  static constexpr std::size_t kBlock = 64;

  void add_block(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> rest_{};  // Bytes that do not fill a block yet.
  std::size_t rest_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::string sha256(std::span<const std::byte> bytes);
std::string sha256(const std::string& text);

}  // namespace pretrain_gpt
