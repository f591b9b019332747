// plugin/search/slots.h
//
// Whether the receives of an order get along with the default number of slots per directed edge
// (plugin/schedule/lower.h), asked of one rank and its neighbours at a time.
#pragma once

#include <vector>

#include "plugin/search/lanes.h"

namespace dualpipe::search {

// Keeps a reference to the lanes. Not thread-safe.
class SlotCheck {
 public:
  explicit SlotCheck(const Lanes& lanes);

  // True where no edge to or from `rank` has more messages under way than slots when one is taken: those sent before it
  // on the edge and not taken yet, and itself; the messages of a pair are taken at once.
  bool holds(const Words& words, int rank);

 private:
  struct Stream {
    int producer;  // The lane whose F, or B and I, it carries, and the lane that takes them.
    int consumer;
    bool is_forward;
  };
  struct Edge {
    int from;
    int to;
    std::vector<Stream> streams;
  };

  void add(int producer, int consumer, bool is_forward);
  bool edge_holds(const Edge& edge, const Words& words);
  void note_sent(const Edge& edge, const Word& word);

  const Lanes& lanes_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> edges_of_rank_;
  std::vector<std::vector<int>> sent_at_;  // By stream of the edge in hand, then turn: place among the edge's messages.
};

}  // namespace dualpipe::search
