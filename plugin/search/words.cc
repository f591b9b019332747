#include "plugin/search/words.h"

#include "plugin/schedule/error.h"

namespace dualpipe::search {
namespace {

LetterKind letter_kind(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return LetterKind::kForward;
    case Kind::kBackward:
      return LetterKind::kBackward;
    case Kind::kBackwardInput:
      return LetterKind::kBackwardInput;
    default:
      check(kind == Kind::kBackwardWeight, "a schedule holds computes alone");
      return LetterKind::kBackwardWeight;
  }
}

std::uint16_t lane_of(const Lanes& lanes, int rank, const Op& op) {
  for (const int index : lanes.of_rank[rank]) {
    const Lane& lane = lanes.lanes[index];
    const int micro_batch = op.micro_batch - lane.first_micro_batch;
    if (lane.stage == op.stage && micro_batch >= 0 && micro_batch < lanes.per_lane) {
      return static_cast<std::uint16_t>(index);
    }
  }
  check(false, "an action stands on the rank of its stage");
  return 0;
}

Letter to_letter(const Lanes& lanes, int rank, const Action& action) {
  const std::uint16_t lane = lane_of(lanes, rank, action.op);
  if (!action.is_overlap()) return {letter_kind(action.op.kind), lane, 0};
  return {LetterKind::kPair, lane, lane_of(lanes, rank, *action.paired)};
}

// How many of each kind a lane has had.
struct Counts {
  int forward = 0;
  int backward = 0;
  std::vector<int> without_weight;  // Micro-batches whose I has run, in order.
  std::size_t weight = 0;
};

class Numbering {
 public:
  explicit Numbering(const Lanes& lanes) : lanes_(lanes), counts_(lanes.lanes.size()) {}

  Action next(const Letter& letter) {
    switch (letter.kind) {
      case LetterKind::kForward:
        return single(forward(letter.lane));
      case LetterKind::kBackward:
        return single(backward(letter.lane, Kind::kBackward));
      case LetterKind::kBackwardInput:
        return single(backward(letter.lane, Kind::kBackwardInput));
      case LetterKind::kBackwardWeight:
        return single(weight(letter.lane));
      default:
        break;
    }
    const Op first = forward(letter.lane);
    return overlap(first, backward(letter.paired, Kind::kBackward));
  }

 private:
  Op op(int lane, Kind kind, int micro_batch) const {
    return make_op(lanes_.lanes[lane].stage, kind, lanes_.lanes[lane].first_micro_batch + micro_batch);
  }
  Op forward(int lane) { return op(lane, Kind::kForward, counts_[lane].forward++); }
  Op backward(int lane, Kind kind) {
    Counts& counts = counts_[lane];
    if (kind == Kind::kBackwardInput) counts.without_weight.push_back(counts.backward);
    return op(lane, kind, counts.backward++);
  }
  Op weight(int lane) {
    Counts& counts = counts_[lane];
    return op(lane, Kind::kBackwardWeight, counts.without_weight.at(counts.weight++));
  }

  const Lanes& lanes_;
  std::vector<Counts> counts_;
};

}  // namespace

Words to_words(const Lanes& lanes, const Schedule& schedule) {
  Words words(schedule.rows.size());
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    for (const Action& action : schedule.rows[rank]) {
      words[rank].push_back(to_letter(lanes, static_cast<int>(rank), action));
    }
  }
  return words;
}

Schedule to_schedule(const Lanes& lanes, const Words& words) {
  Schedule schedule{"auto", lanes.placement, lanes.num_microbatches, {}};
  Numbering numbering(lanes);
  for (const Word& word : words) {
    Row& row = schedule.rows.emplace_back();
    for (const Letter& letter : word) row.push_back(numbering.next(letter));
  }
  return schedule;
}

}  // namespace dualpipe::search
