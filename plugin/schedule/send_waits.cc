#include "plugin/schedule/send_waits.h"

#include <algorithm>

namespace dualpipe {

std::vector<int> proof_columns(const std::vector<Message>& outgoing, const std::vector<Message>& incoming,
                               int unproven) {
  // earliest[i]: where the first of incoming[i], incoming[i + 1], ... to be consumed is.
  std::vector<int> earliest(incoming.size() + 1, unproven);
  for (std::size_t i = incoming.size(); i-- > 0;) {
    earliest[i] = std::min(earliest[i + 1], incoming[i].taken_at);
  }
  std::vector<int> columns;
  columns.reserve(outgoing.size());
  std::size_t answer = 0;  // The first message that the peer sent in or after the action that consumed ours.
  for (const Message& message : outgoing) {
    while (answer > 0 && incoming[answer - 1].sent_at >= message.taken_at) {
      --answer;
    }
    while (answer < incoming.size() && incoming[answer].sent_at < message.taken_at) {
      ++answer;
    }
    // Not before the send: ranks that wait for each other in a circle "prove" what never happened.
    columns.push_back(std::max(earliest[answer], message.sent_at));
  }
  return columns;
}

std::vector<SendWait> by_column(const std::vector<SendWait>& waits, int columns) {
  std::vector<std::size_t> first(columns + 1, 0);
  for (const SendWait& wait : waits) {
    ++first[wait.column + 1];
  }
  for (std::size_t column = 1; column < first.size(); ++column) {
    first[column] += first[column - 1];
  }
  std::vector<SendWait> sorted(waits.size());
  for (const SendWait& wait : waits) {
    sorted[first[wait.column]++] = wait;
  }
  return sorted;
}

}  // namespace dualpipe
