// plugin/analysis/explore.h
//
// Runs a lowered program against a model of its transport, to see whether all ranks reach their end. Sends and posted
// receives never block their rank; a compute waits for the messages that it consumes, a WAIT_SEND for its transfer.
// Since nothing that a rank does can take a possibility from another, one order of running finds what any order finds.
//
//   Tagged   asynchronous rendezvous: a message moves once it is sent and its receive is posted
//   InOrder  an edge's messages move strictly in the order of sending, into k slots; a receive that finds no free slot
//            waits for one. Wants the posts of an edge to be in the order of its sends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/analysis/messages.h"
#include "plugin/schedule/lower.h"

namespace dualpipe::analysis {

class Tagged {
 public:
  explicit Tagged(const Messages& messages) : ends_(messages.count(), 0) {}

  bool may_post(const MessageId&) const { return true; }
  void send(const MessageId& message) { ends_[message.id] |= 1; }
  void post(const MessageId& message) { ends_[message.id] |= 2; }
  void consume(const MessageId&) {}
  bool arrived(const MessageId& message) const { return ends_[message.id] == 3; }
  bool is_sent(const MessageId& message) const { return (ends_[message.id] & 1) != 0; }

 private:
  std::vector<std::uint8_t> ends_;
};

class InOrder {
 public:
  // place_in_edge[message.id] counts the messages sent before it on its edge.
  InOrder(const Messages& messages, const std::vector<std::int32_t>& place_in_edge, int slots)
      : place_(place_in_edge), slots_(slots), edges_(messages.edges().size()) {}

  bool may_post(const MessageId& message) const {
    const Counts& edge = edges_[message.edge];
    return edge.posted - edge.consumed < slots_;
  }
  void send(const MessageId& message) { ++edges_[message.edge].sent; }
  void post(const MessageId& message) { ++edges_[message.edge].posted; }
  void consume(const MessageId& message) { ++edges_[message.edge].consumed; }
  bool arrived(const MessageId& message) const {
    const Counts& edge = edges_[message.edge];
    return place_[message.id] < std::min(edge.sent, edge.posted);
  }
  bool is_sent(const MessageId& message) const { return place_[message.id] < edges_[message.edge].sent; }

 private:
  struct Counts {
    std::int32_t sent = 0;
    std::int32_t posted = 0;
    std::int32_t consumed = 0;
  };
  const std::vector<std::int32_t>& place_;
  int slots_;
  std::vector<Counts> edges_;
};

template <class Channels>
class Exploration {
 public:
  // The program's cells must have passed check_cells().
  Exploration(const Program& program, const Messages& messages, Channels channels)
      : program_(program),
        messages_(messages),
        channels_(std::move(channels)),
        column_(program.rows.size(), 0),
        queued_(program.rows.size(), 1) {
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
      queue_.push_back(static_cast<int>(rank));
    }
  }

  // True if every rank reaches the end of its row.
  bool run() {
    std::vector<int> turn;
    while (!queue_.empty()) {
      turn.swap(queue_);
      for (const int rank : turn) {
        queued_[rank] = 0;
        run_rank(rank);
      }
      turn.clear();
    }
    return std::all_of(column_.begin(), column_.end(), [&, rank = std::size_t{0}](int column) mutable {
      return column == static_cast<int>(program_.rows[rank++].size());
    });
  }

  int reached(int rank) const { return column_[rank]; }
  const Channels& channels() const { return channels_; }

  // The message that holds up the rank at reached(rank).
  MessageId awaited(int rank) const {
    const Action& action = program_.rows[rank].at(column_[rank]);
    return action.paired && !is_blocked(action.op) ? blocking(*action.paired) : blocking(action.op);
  }

 private:
  void run_rank(int rank) {
    const Row& row = program_.rows[rank];
    int& column = column_[rank];
    while (column < static_cast<int>(row.size())) {
      const Action& action = row[column];
      if (is_blocked(action.op) || (action.paired && is_blocked(*action.paired))) {
        return;
      }
      perform(action.op);
      if (action.paired) {
        perform(*action.paired);
      }
      ++column;
    }
  }

  MessageId blocking(const Op& op) const {
    return is_compute(op.kind) ? messages_.consumed_by(op).value() : messages_.moved_by(op).value();
  }

  bool is_blocked(const Op& op) const {
    if (is_compute(op.kind)) {
      const std::optional<MessageId> message = messages_.consumed_by(op);
      return message && !channels_.arrived(*message);
    }
    if (is_wait_send(op.kind)) {
      return !channels_.arrived(*messages_.moved_by(op));
    }
    return is_recv(op.kind) && !channels_.may_post(*messages_.moved_by(op));
  }

  void perform(const Op& op) {
    if (is_compute(op.kind)) {
      if (const std::optional<MessageId> message = messages_.consumed_by(op)) {
        channels_.consume(*message);
      }
    } else if (is_send(op.kind)) {
      const MessageId message = *messages_.moved_by(op);
      channels_.send(message);
      wake(messages_.edges()[message.edge].to);
    } else if (is_recv(op.kind)) {
      const MessageId message = *messages_.moved_by(op);
      channels_.post(message);
      wake(messages_.edges()[message.edge].from);
    }
  }

  void wake(int rank) {
    if (queued_[rank] == 0) {
      queued_[rank] = 1;
      queue_.push_back(rank);
    }
  }

  const Program& program_;
  const Messages& messages_;
  Channels channels_;
  std::vector<int> column_;
  std::vector<char> queued_;
  std::vector<int> queue_;
};

}  // namespace dualpipe::analysis
