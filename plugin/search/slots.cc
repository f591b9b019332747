#include "plugin/search/slots.h"

#include <algorithm>

#include "plugin/schedule/lower.h"

namespace dualpipe::search {
namespace {

bool produces(const Letter& letter, int lane, bool is_forward) {
  return is_forward ? letter.has_forward() && letter.lane == lane
                    : letter.has_backward() && letter.backward_lane() == lane;
}

}  // namespace

SlotCheck::SlotCheck(const Lanes& lanes) : lanes_(lanes), edges_of_rank_(lanes.ranks()) {
  for (std::size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
    const int next = lanes.lanes[lane].next;
    if (next < 0 || lanes.lanes[next].rank == lanes.lanes[lane].rank) continue;
    add(static_cast<int>(lane), next, true);
    add(next, static_cast<int>(lane), false);
  }
}

void SlotCheck::add(int producer, int consumer, bool is_forward) {
  const int from = lanes_.lanes[producer].rank;
  const int to = lanes_.lanes[consumer].rank;
  auto edge = std::find_if(edges_.begin(), edges_.end(), [&](const Edge& e) { return e.from == from && e.to == to; });
  if (edge == edges_.end()) {
    edges_of_rank_[from].push_back(static_cast<int>(edges_.size()));
    edges_of_rank_[to].push_back(static_cast<int>(edges_.size()));
    edge = edges_.insert(edges_.end(), Edge{from, to, {}});
  }
  edge->streams.push_back({producer, consumer, is_forward});
  sent_at_.resize(std::max(sent_at_.size(), edge->streams.size()));
}

bool SlotCheck::holds(const Words& words, int rank) {
  return std::all_of(edges_of_rank_[rank].begin(), edges_of_rank_[rank].end(),
                     [&](int edge) { return edge_holds(edges_[edge], words); });
}

// Of a pair the F is sent first.
void SlotCheck::note_sent(const Edge& edge, const Word& word) {
  int count = 0;
  for (std::vector<int>& turns : sent_at_) turns.clear();
  for (const Letter& letter : word) {
    for (const bool is_forward : {true, false}) {
      for (std::size_t i = 0; i < edge.streams.size(); ++i) {
        const Stream& stream = edge.streams[i];
        if (stream.is_forward == is_forward && produces(letter, stream.producer, is_forward)) {
          sent_at_[i].push_back(count++);
        }
      }
    }
  }
}

// Streams are taken in the order of sending, so before the n-th message of the edge stand n, less those taken.
bool SlotCheck::edge_holds(const Edge& edge, const Words& words) {
  if (edge.streams.size() < 2) return true;
  note_sent(edge, words[edge.from]);
  std::vector<std::size_t> turn(edge.streams.size(), 0);
  int taken = 0;
  for (const Letter& letter : words[edge.to]) {
    int latest = -1;
    int taken_now = 0;
    for (std::size_t i = 0; i < edge.streams.size(); ++i) {
      const Stream& stream = edge.streams[i];
      if (!produces(letter, stream.consumer, stream.is_forward)) continue;
      latest = std::max(latest, sent_at_[i][turn[i]++]);
      ++taken_now;
    }
    // Taken ones were sent before `latest` or after it: only the former count.
    int later_taken = 0;
    for (std::size_t i = 0; latest >= 0 && i < edge.streams.size(); ++i) {
      for (std::size_t t = turn[i]; t-- > 0 && sent_at_[i][t] > latest;) ++later_taken;
    }
    if (latest >= 0 && latest + 1 - (taken - later_taken) > kDefaultSlots) return false;
    taken += taken_now;
  }
  return true;
}

}  // namespace dualpipe::search
