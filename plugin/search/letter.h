// plugin/search/letter.h
//
// The orders that the search changes: a word of letters per rank, which name lanes (plugin/search/lanes.h) and no
// micro-batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dualpipe::search {

enum class LetterKind : std::uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeight, kPair };

inline constexpr std::size_t kLetterKinds = 5;

struct Letter {
  LetterKind kind = LetterKind::kForward;
  std::uint16_t lane = 0;    // Index into Lanes::lanes; of a pair, that of its F.
  std::uint16_t paired = 0;  // Of a pair, the lane of its B.

  bool has_forward() const { return kind == LetterKind::kForward || kind == LetterKind::kPair; }
  // B, or the I that may stand for it.
  bool has_backward() const { return kind != LetterKind::kForward && kind != LetterKind::kBackwardWeight; }
  // The activation is freed.
  bool frees() const { return kind != LetterKind::kForward && kind != LetterKind::kBackwardInput; }
  int backward_lane() const { return kind == LetterKind::kPair ? paired : lane; }

  friend bool operator==(const Letter&, const Letter&) = default;
};

using Word = std::vector<Letter>;
using Words = std::vector<Word>;

}  // namespace dualpipe::search
