#include <algorithm>

#include "plugin/search/evaluate.h"
#include "plugin/search/first_orders.h"

namespace dualpipe::search {
namespace {

// The last B, W or pair of another stage than the last one keeps its place, but its W goes to the end.
void end_with_another(const Lanes& lanes, Word& word) {
  const int stage = last_stage(lanes, word);
  const auto other = std::find_if(word.rbegin(), word.rend(), [&](const Letter& letter) {
    return letter.frees() && lanes.lanes[letter.backward_lane()].stage != stage;
  });
  if (other == word.rend()) return;
  const auto place = std::prev(other.base());
  const Letter before = *place;
  const Letter weight{LetterKind::kBackwardWeight, static_cast<std::uint16_t>(before.backward_lane()), 0};
  if (before.kind == LetterKind::kBackwardWeight) {
    word.erase(place);
  } else {
    *place = {LetterKind::kBackwardInput, weight.lane, 0};
    if (before.has_forward()) word.insert(place, {LetterKind::kForward, before.lane, 0});
  }
  word.push_back(weight);
}

}  // namespace

Words sequential_order(const Lanes& lanes) {
  Words words(lanes.ranks());
  const int count = static_cast<int>(lanes.lanes.size());
  const int directions = lanes.placement.is_bidirectional() ? 2 : 1;
  const int stages = count / directions;
  for (int turn = 0; turn < lanes.per_lane; ++turn) {
    for (int first = 0; first < count; first += stages) {
      for (int lane = first; lane < first + stages; ++lane) {
        words[lanes.lanes[lane].rank].push_back({LetterKind::kForward, static_cast<std::uint16_t>(lane), 0});
      }
      for (int lane = first + stages - 1; lane >= first; --lane) {
        words[lanes.lanes[lane].rank].push_back({LetterKind::kBackward, static_cast<std::uint16_t>(lane), 0});
      }
    }
  }
  settle_mirrors(lanes, words);
  return words;
}

void settle_mirrors(const Lanes& lanes, Words& words) {
  if (!lanes.placement.is_bidirectional()) return;
  Evaluator evaluator(lanes);
  for (int rank = 0; rank < lanes.ranks() / 2; ++rank) {
    const int mirror = lanes.ranks() - 1 - rank;
    if (last_stage(lanes, words[rank]) == last_stage(lanes, words[mirror])) continue;
    Word settled = words[rank];
    end_with_another(lanes, settled);
    if (evaluator.check_word(rank, settled).holds) {
      words[rank] = std::move(settled);
    } else {
      end_with_another(lanes, words[mirror]);
    }
  }
}

}  // namespace dualpipe::search
