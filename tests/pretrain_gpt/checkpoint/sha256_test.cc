#include "examples/pretrain_gpt/checkpoint/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace pretrain_gpt {
namespace {

// The examples of FIPS 180-4 (SHA256.pdf of NIST's cryptographic toolkit) and of NESSIE's test vectors.
TEST(Sha256, HasThePublishedDigests) {
  const struct {
    std::string text, digest;
  } rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"a", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"message digest", "f7846f55cf23e14eebeab5b4e1550cad5b509e3348fbc4efa3a1413d393cb650"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrst"
       "u",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(sha256(row.text), row.digest) << row.text.substr(0, 20);
  }
}

TEST(Sha256, DoesNotDependOnHowTheBytesCome) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i * 7);
  }
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string part = text.substr(0, length);
    for (const std::size_t step : {1, 3, 63, 64, 65}) {
      Sha256 hash;
      for (std::size_t place = 0; place < length; place += step) {
        hash.add(std::as_bytes(std::span(part)).subspan(place, std::min(step, length - place)));
      }
      ASSERT_EQ(hash.finish(), sha256(part)) << length << " by " << step;
    }
  }
}

}  // namespace
}  // namespace pretrain_gpt
