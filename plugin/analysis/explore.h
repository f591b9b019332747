// plugin/analysis/explore.h
//
// Runs a lowered program against a model of its transport, to see whether all ranks reach their end. Sends and receives
// are posted without waiting; a compute waits for the messages that it consumes, a WAIT_SEND for its transfer. A pair
// takes its two messages one at a time, as they come. Since nothing that a rank does can take a possibility from
// another, one order of running finds what any order finds.
//
//   Tagged   asynchronous rendezvous: a message moves once it is sent and its receive is posted
//   InOrder  an edge's messages move strictly in the order of sending, each once it is sent, its receive is posted and
//            one of the edge's k slots is free; consuming a message frees its slot. Wants the receives of an edge to be
//            posted in the order of its sends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/analysis/messages.h"
#include "plugin/analysis/rank_queue.h"
#include "plugin/schedule/lower.h"

namespace dualpipe::analysis {

class Tagged {
 public:
  static constexpr bool kConsumeLetsMove = false;

  explicit Tagged(const Messages& messages) : ends_(messages.count(), 0) {}

  void send(const MessageId& message) { ends_[message.id] |= kSent; }
  void post(const MessageId& message) { ends_[message.id] |= kPosted; }
  void consume(const MessageId&) {}
  bool has_moved(const MessageId& message) const { return ends_[message.id] == (kSent | kPosted); }
  bool is_sent(const MessageId& message) const { return (ends_[message.id] & kSent) != 0; }
  bool is_posted(const MessageId& message) const { return (ends_[message.id] & kPosted) != 0; }

 private:
  static constexpr std::uint8_t kSent = 1;
  static constexpr std::uint8_t kPosted = 2;
  std::vector<std::uint8_t> ends_;
};

class InOrder {
 public:
  static constexpr bool kConsumeLetsMove = true;

  // place_in_edge[message.id] counts the messages sent before it on its edge.
  InOrder(const Messages& messages, const std::vector<std::int32_t>& place_in_edge, int slots)
      : place_(place_in_edge), slots_(slots), edges_(messages.edges().size()) {}

  void send(const MessageId& message) { ++edges_[message.edge].sent; }
  void post(const MessageId& message) { ++edges_[message.edge].posted; }
  void consume(const MessageId& message) { ++edges_[message.edge].consumed; }
  bool has_moved(const MessageId& message) const {
    const Counts& edge = edges_[message.edge];
    return place_[message.id] < std::min({edge.sent, edge.posted, edge.consumed + slots_});
  }
  bool is_sent(const MessageId& message) const { return place_[message.id] < edges_[message.edge].sent; }
  bool is_posted(const MessageId& message) const { return place_[message.id] < edges_[message.edge].posted; }

 private:
  struct Counts {
    std::int32_t sent = 0;
    std::int32_t posted = 0;
    std::int32_t consumed = 0;
  };
  const std::vector<std::int32_t>& place_;
  std::int32_t slots_;
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
        states_(program.rows.size()),
        queue_(static_cast<int>(program.rows.size())) {}

  // True if every rank reaches the end of its row.
  bool run() {
    while (const std::optional<int> rank = queue_.pop()) {
      run_rank(*rank);
    }
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      if (states_[rank].column < static_cast<int>(program_.rows[rank].size())) {
        return false;
      }
    }
    return true;
  }

  int reached(int rank) const { return states_[rank].column; }
  const Channels& channels() const { return channels_; }

  // The message that holds up the rank at reached(rank).
  MessageId awaited(int rank) const {
    const State& state = states_[rank];
    const Action& action = program_.rows[rank].at(state.column);
    if (is_wait_send(action.op.kind)) {
      return messages_.moved_by(action.op).value();
    }
    const bool has_first = state.has_taken_first || !messages_.consumed_by(action.op);
    return messages_.consumed_by(has_first ? action.paired.value() : action.op).value();
  }

 private:
  struct State {
    int column = 0;
    bool has_taken_first = false;  // The message of the action's op, of its paired op.
    bool has_taken_second = false;
  };

  void run_rank(int rank) {
    const Row& row = program_.rows[rank];
    State& state = states_[rank];
    while (state.column < static_cast<int>(row.size()) && perform(row[state.column], state)) {
      ++state.column;
      state.has_taken_first = false;
      state.has_taken_second = false;
    }
  }

  bool perform(const Action& action, State& state) {
    const Op& op = action.op;
    if (is_compute(op.kind)) {
      return action.paired ? take_both(op, *action.paired, state) : take(op, state.has_taken_first);
    }
    if (!has_micro_batch(op.kind)) {
      return true;
    }
    const MessageId message = *messages_.moved_by(op);
    if (is_wait_send(op.kind)) {
      return channels_.has_moved(message);
    }
    if (is_send(op.kind)) {
      channels_.send(message);
      queue_.push(messages_.edges()[message.edge].to);
    } else {
      channels_.post(message);
      queue_.push(messages_.edges()[message.edge].from);
    }
    return true;
  }

  // Either message may be the one that frees the slot which the other needs.
  bool take_both(const Op& first, const Op& second, State& state) {
    take(first, state.has_taken_first);
    take(second, state.has_taken_second);
    return take(first, state.has_taken_first) && state.has_taken_second;
  }

  bool take(const Op& op, bool& has_taken) {
    const std::optional<MessageId> message = has_taken ? std::nullopt : messages_.consumed_by(op);
    if (message && !channels_.has_moved(*message)) {
      return false;
    }
    has_taken = true;
    if (message) {
      channels_.consume(*message);
      if (Channels::kConsumeLetsMove) {
        queue_.push(messages_.edges()[message->edge].from);
      }
    }
    return true;
  }

  const Program& program_;
  const Messages& messages_;
  Channels channels_;
  std::vector<State> states_;
  RankQueue queue_;
};

}  // namespace dualpipe::analysis
