#include "plugin/analysis/messages.h"

#include <algorithm>

namespace dualpipe::analysis {
namespace {

std::size_t slot(const Placement& placement, int direction, int stage, bool backward) {
  return (static_cast<std::size_t>(direction) * placement.stages() + stage) * 2 + (backward ? 1 : 0);
}

// One micro-batch of each direction that occurs.
std::vector<int> representatives(const Placement& placement, int num_microbatches) {
  std::vector<int> result;
  if (num_microbatches > 0) {
    result.push_back(0);
    if (placement.direction(num_microbatches - 1) == 1) {
      result.push_back(num_microbatches - 1);
    }
  }
  return result;
}

std::optional<Edge> edge_into(const Placement& placement, int stage, bool backward, int micro_batch) {
  const int source = backward ? stage + 1 : stage - 1;
  if (source < 0 || source >= placement.stages()) {
    return std::nullopt;
  }
  const Edge edge{placement.rank_of(source, micro_batch), placement.rank_of(stage, micro_batch)};
  return edge.from == edge.to ? std::nullopt : std::optional(edge);
}

template <class Use>
void for_each_edge(const Placement& placement, int num_microbatches, Use use) {
  for (const int micro_batch : representatives(placement, num_microbatches)) {
    for (int stage = 0; stage < placement.stages(); ++stage) {
      for (const bool backward : {false, true}) {
        if (const std::optional<Edge> edge = edge_into(placement, stage, backward, micro_batch)) {
          use(slot(placement, placement.direction(micro_batch), stage, backward), *edge);
        }
      }
    }
  }
}

}  // namespace

Messages::Messages(const Placement& placement, int num_microbatches)
    : placement_(placement),
      stride_(static_cast<std::size_t>(num_microbatches)),
      count_(static_cast<std::size_t>(placement.stages()) * stride_ * 2),
      edge_of_(static_cast<std::size_t>(placement.stages()) * 4, -1) {
  for_each_edge(placement, num_microbatches, [&](std::size_t, Edge edge) { edges_.push_back(edge); });
  std::sort(edges_.begin(), edges_.end());
  edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  for_each_edge(placement, num_microbatches, [&](std::size_t index, Edge edge) {
    edge_of_[index] = static_cast<int>(std::lower_bound(edges_.begin(), edges_.end(), edge) - edges_.begin());
  });
}

std::optional<MessageId> Messages::received(int stage, bool backward, int micro_batch) const {
  if (stage < 0 || stage >= placement_.stages()) {
    return std::nullopt;
  }
  const int edge = edge_of_[slot(placement_, placement_.direction(micro_batch), stage, backward)];
  if (edge < 0) {
    return std::nullopt;
  }
  const std::size_t cell = static_cast<std::size_t>(stage) * stride_ + micro_batch;
  return MessageId{cell * 2 + (backward ? 1 : 0), edge};
}

std::optional<MessageId> Messages::consumed_by(const Op& op) const {
  if (op.kind == Kind::kBackwardWeight) {
    return std::nullopt;
  }
  return received(op.stage, op.kind != Kind::kForward, op.micro_batch);
}

std::optional<MessageId> Messages::moved_by(const Op& op) const {
  switch (op.kind) {
    case Kind::kSendForward:
    case Kind::kWaitSendForward:
      return received(op.stage + 1, false, op.micro_batch);
    case Kind::kSendBackward:
    case Kind::kWaitSendBackward:
      return received(op.stage - 1, true, op.micro_batch);
    case Kind::kRecvForward:
      return received(op.stage, false, op.micro_batch);
    case Kind::kRecvBackward:
      return received(op.stage, true, op.micro_batch);
    default:
      return std::nullopt;
  }
}

}  // namespace dualpipe::analysis
