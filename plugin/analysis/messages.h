// plugin/analysis/messages.h
//
// Numbers the messages of a placement and the directed edges they travel on. A message is named by who receives it: the
// forward message of (stage, micro-batch) feeds its F, the backward message its B or I.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/schedule/action.h"
#include "plugin/schedule/placement.h"

namespace dualpipe::analysis {

struct Edge {
  int from = 0;
  int to = 0;
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

struct MessageId {
  std::size_t id = 0;  // Dense, below Messages::count().
  int edge = 0;        // Index into Messages::edges().
};

class Messages {
 public:
  Messages(const Placement& placement, int num_microbatches);

  std::size_t count() const { return count_; }
  const std::vector<Edge>& edges() const { return edges_; }

  // What F, B or I takes from another rank. Nothing for W, at the ends of the pipeline, and where the producer is on
  // the same rank. `op` must be in range.
  std::optional<MessageId> consumed_by(const Op& op) const;
  // The message that a SEND, RECV or WAIT_SEND is about; nothing where no message is due.
  std::optional<MessageId> moved_by(const Op& op) const;

 private:
  std::optional<MessageId> received(int stage, bool backward, int micro_batch) const;

  const Placement& placement_;
  std::size_t stride_;
  std::size_t count_;
  std::vector<Edge> edges_;
  std::vector<int> edge_of_;  // By (direction, stage, backward); -1 where there is no message.
};

}  // namespace dualpipe::analysis
