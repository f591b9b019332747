#include <algorithm>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe {
namespace {

// When each message of an edge is consumed, in the order of sending. A pair consumes for its F first.
std::vector<int> consumption_times(const std::vector<Message>& messages) {
  std::vector<int> times;
  times.reserve(messages.size());
  for (const Message& message : messages) {
    times.push_back(2 * message.taken_at + (message.recv.kind == Kind::kRecvBackward ? 1 : 0));
  }
  return times;
}

// In order, a message arrives when all that were sent before it have: the channel then holds those of them that nobody
// has consumed, and the message itself.
int most_held(const std::vector<Message>& messages) {
  std::vector<int> due = consumption_times(messages);
  std::vector<int> consumed = due;
  std::sort(consumed.begin(), consumed.end());
  for (std::size_t i = due.size(); i-- > 1;) {
    due[i - 1] = std::min(due[i - 1], due[i]);
  }
  std::size_t arrived = 0;
  std::size_t most = 1;
  for (std::size_t i = 0; i < consumed.size(); ++i) {
    while (arrived < due.size() && due[arrived] <= consumed[i]) {
      ++arrived;
    }
    most = std::max(most, arrived - i);
  }
  return static_cast<int>(most);
}

}  // namespace

int least_slots(const Schedule& schedule) {
  const Traffic traffic(schedule);
  int most = 1;
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    for (const int peer : traffic.peers_of(rank)) {
      most = std::max(most, most_held(traffic.edge(peer, rank)));
    }
  }
  return most;
}

}  // namespace dualpipe
