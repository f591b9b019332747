#include <algorithm>
#include <limits>

#include "plugin/search/improve.h"

namespace dualpipe::search {
namespace {

double least_forward(const Lane& lane) {
  return std::min(duration(lane, LetterKind::kForward), duration(lane, LetterKind::kPair));
}

// From the input until the lane can begin.
double way_to(const Lanes& lanes, int index) {
  double time = 0;
  for (int lane = index; lanes.lanes[lane].previous >= 0; lane = lanes.lanes[lane].previous) {
    const Lane& before = lanes.lanes[lanes.lanes[lane].previous];
    time += least_forward(before) + lanes.lanes[lane].previous_latency;
  }
  return time;
}

// There and back again. A pair may be shorter than either of its halves, and it may be that of any lane of the rank.
double round_trip(const Lanes& lanes, int last) {
  double time = 0;
  for (int index = last; index >= 0; index = lanes.lanes[index].previous) {
    const Lane& lane = lanes.lanes[index];
    double back = duration(lane, LetterKind::kBackwardInput);
    for (const int other : lanes.of_rank[lane.rank]) {
      back = std::min(back, duration(lanes.lanes[other], LetterKind::kPair));
    }
    time += least_forward(lane) + back + 2 * lane.previous_latency;
  }
  return time;
}

// Each F alone, or paired with the longest backward of the rank.
double least_work(const Lanes& lanes, int rank) {
  double longest_backward = 0;
  for (const int index : lanes.of_rank[rank]) {
    longest_backward = std::max(longest_backward, duration(lanes.lanes[index], LetterKind::kBackward));
  }
  double time = 0;
  for (const int index : lanes.of_rank[rank]) {
    const Lane& lane = lanes.lanes[index];
    const double forward = duration(lane, LetterKind::kForward);
    const double gain = std::max(0.0, forward + longest_backward - duration(lane, LetterKind::kPair));
    time += lanes.per_lane * (forward + duration(lane, LetterKind::kBackward) - gain);
  }
  return std::max(time, 0.0);
}

}  // namespace

double lower_bound(const Lanes& lanes) {
  double bound = 0;
  for (int rank = 0; rank < lanes.ranks(); ++rank) {
    double way = std::numeric_limits<double>::infinity();
    for (const int index : lanes.of_rank[rank]) way = std::min(way, way_to(lanes, index));
    bound = std::max(bound, way + least_work(lanes, rank));
  }
  for (std::size_t index = 0; index < lanes.lanes.size(); ++index) {
    if (lanes.lanes[index].next < 0) bound = std::max(bound, round_trip(lanes, static_cast<int>(index)));
  }
  return bound;
}

}  // namespace dualpipe::search
