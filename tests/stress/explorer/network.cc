#include "tests/stress/explorer/network.h"

#include <algorithm>

namespace dualpipe::stress {

NetworkRun::NetworkRun(const Network& network, Wires wires, int slots)
    : network_(network),
      wires_(wires),
      slots_(slots),
      edges_(network.ranks.size() * network.ranks.size()),
      sent_(network.ends.size()),
      posted_(network.ends.size()),
      arrived_(network.ends.size()),
      taken_(network.ends.size()),
      next_(network.ranks.size()),
      is_awake_(network.ranks.size()) {}

Stuck NetworkRun::run() {
  for (std::size_t rank = 0; rank < network_.ranks.size(); ++rank) {
    wake(static_cast<int>(rank));
  }
  while (!awake_.empty()) {
    const int rank = awake_.front();
    awake_.pop_front();
    is_awake_[rank] = 0;
    run_rank(rank);
  }
  Stuck stuck(network_.ranks.size());
  for (std::size_t rank = 0; rank < stuck.size(); ++rank) {
    if (next_[rank] < network_.ranks[rank].size()) {
      stuck[rank] = next_[rank];
    }
  }
  return stuck;
}

void NetworkRun::run_rank(int rank) {
  const std::vector<Step>& steps = network_.ranks[rank];
  while (next_[rank] < steps.size() && do_step(steps[next_[rank]])) {
    ++next_[rank];
  }
}

bool NetworkRun::do_step(const Step& step) {
  switch (step.verb) {
    case Step::Verb::kNothing:
      return true;
    case Step::Verb::kSend:
      announce(step.messages[0], true);
      return true;
    case Step::Verb::kPost:
      announce(step.messages[0], false);
      return true;
    case Step::Verb::kArrived:
      return arrived_[step.messages[0]] != 0;
    case Step::Verb::kTake:
      return take_all(step);
  }
  return false;
}

// Taking one may let the other arrive.
bool NetworkRun::take_all(const Step& step) {
  int left = step.count;
  for (bool again = true; again;) {
    again = false;
    left = step.count;
    for (int i = 0; i < step.count; ++i) {
      const std::int32_t message = step.messages[i];
      if (arrived_[message] != 0 && taken_[message] == 0) {
        taken_[message] = 1;
        again = true;
        Edge& edge = edge_of(message);
        --edge.held;
        move(edge, network_.ends[message]);
      }
      left -= taken_[message];
    }
  }
  return left == 0;
}

void NetworkRun::announce(std::int32_t message, bool by_sender) {
  (by_sender ? sent_ : posted_)[message] = 1;
  Edge& edge = edge_of(message);
  if (wires_ == Wires::kInOrder) {
    (by_sender ? edge.sent : edge.posted).push_back(message);
    move(edge, network_.ends[message]);
  } else if (sent_[message] != 0 && posted_[message] != 0) {
    arrived_[message] = 1;
    wake(network_.ends[message].from);
    wake(network_.ends[message].to);
  }
}

void NetworkRun::move(Edge& edge, const Network::Ends& ends) {
  if (wires_ == Wires::kTagged) {
    return;
  }
  while (!edge.sent.empty() && !edge.posted.empty() && edge.sent.front() == edge.posted.front() && edge.held < slots_) {
    arrived_[edge.sent.front()] = 1;
    edge.sent.pop_front();
    edge.posted.pop_front();
    ++edge.held;
    wake(ends.from);
    wake(ends.to);
  }
}

NetworkRun::Edge& NetworkRun::edge_of(std::int32_t message) {
  const Network::Ends& ends = network_.ends[message];
  return edges_[static_cast<std::size_t>(ends.from) * network_.ranks.size() + ends.to];
}

void NetworkRun::wake(int rank) {
  if (is_awake_[rank] == 0) {
    is_awake_[rank] = 1;
    awake_.push_back(rank);
  }
}

bool all_end(const Network& network, Wires wires, int slots) {
  const Stuck stuck = NetworkRun(network, wires, slots).run();
  return std::none_of(stuck.begin(), stuck.end(), [](const auto& step) { return step.has_value(); });
}

}  // namespace dualpipe::stress
