#include "tests/stress/explorer/networks.h"

#include <map>
#include <utility>

namespace dualpipe::stress {
namespace {

// Messages by who receives them: twice (stage, micro-batch), once for F and once for gradients.
class Numbering {
 public:
  Numbering(const Placement& placement, int num_microbatches)
      : placement_(placement), num_microbatches_(num_microbatches) {}

  std::size_t count() const { return 2u * placement_.stages() * num_microbatches_; }

  std::vector<Network::Ends> ends() const {
    std::vector<Network::Ends> ends(count());
    for (int stage = 0; stage < placement_.stages(); ++stage) {
      for (int micro_batch = 0; micro_batch < num_microbatches_; ++micro_batch) {
        for (const bool backward : {false, true}) {
          if (moves(stage, micro_batch, backward)) {
            ends[id(stage, micro_batch, backward)] = {source(stage, micro_batch, backward),
                                                      placement_.rank_of(stage, micro_batch)};
          }
        }
      }
    }
    return ends;
  }

  // What an F, B or I of another rank gets.
  std::optional<std::int32_t> into(const Op& op) const {
    return op.kind == Kind::kBackwardWeight ? std::nullopt : find(op.stage, op.micro_batch, op.kind != Kind::kForward);
  }
  // What the result of an F, B or I is to another rank.
  std::optional<std::int32_t> out_of(const Op& op) const {
    if (op.kind == Kind::kBackwardWeight) {
      return std::nullopt;
    }
    return op.kind == Kind::kForward ? find(op.stage + 1, op.micro_batch, false)
                                     : find(op.stage - 1, op.micro_batch, true);
  }

 private:
  int source(int stage, int micro_batch, bool backward) const {
    return placement_.rank_of(backward ? stage + 1 : stage - 1, micro_batch);
  }
  bool moves(int stage, int micro_batch, bool backward) const {
    const int from = backward ? stage + 1 : stage - 1;
    return stage >= 0 && stage < placement_.stages() && from >= 0 && from < placement_.stages() &&
           source(stage, micro_batch, backward) != placement_.rank_of(stage, micro_batch);
  }
  std::int32_t id(int stage, int micro_batch, bool backward) const {
    return 2 * (stage * num_microbatches_ + micro_batch) + (backward ? 1 : 0);
  }
  std::optional<std::int32_t> find(int stage, int micro_batch, bool backward) const {
    return moves(stage, micro_batch, backward) ? std::optional(id(stage, micro_batch, backward)) : std::nullopt;
  }

  const Placement& placement_;
  int num_microbatches_;
};

Step step_of(Step::Verb verb, std::optional<std::int32_t> message) {
  return message ? Step{verb, 1, {*message, 0}} : Step{};
}

Step take_both(std::optional<std::int32_t> first, std::optional<std::int32_t> second) {
  if (first && second) {
    return Step{Step::Verb::kTake, 2, {*first, *second}};
  }
  return step_of(Step::Verb::kTake, first ? first : second);
}

// All receives, posted at the start in the order in which the edge's messages are sent.
void post_all(Network& network) {
  std::vector<std::vector<Step>> posts(network.ranks.size());
  for (const std::vector<Step>& steps : network.ranks) {
    for (const Step& step : steps) {
      if (step.verb == Step::Verb::kSend) {
        posts[network.ends[step.messages[0]].to].push_back(step_of(Step::Verb::kPost, step.messages[0]));
      }
    }
  }
  for (std::size_t rank = 0; rank < posts.size(); ++rank) {
    network.ranks[rank].insert(network.ranks[rank].begin(), posts[rank].begin(), posts[rank].end());
  }
}

Step step_of(const Numbering& numbering, const Op& op) {
  const Op forward = make_op(op.stage, Kind::kForward, op.micro_batch);
  const Op backward = make_op(op.stage, Kind::kBackward, op.micro_batch);
  switch (op.kind) {
    case Kind::kSendForward:
      return step_of(Step::Verb::kSend, numbering.out_of(forward));
    case Kind::kSendBackward:
      return step_of(Step::Verb::kSend, numbering.out_of(backward));
    case Kind::kRecvForward:
      return step_of(Step::Verb::kPost, numbering.into(forward));
    case Kind::kRecvBackward:
      return step_of(Step::Verb::kPost, numbering.into(backward));
    case Kind::kWaitSendForward:
      return step_of(Step::Verb::kArrived, numbering.out_of(forward));
    case Kind::kWaitSendBackward:
      return step_of(Step::Verb::kArrived, numbering.out_of(backward));
    default:
      return is_compute(op.kind) ? step_of(Step::Verb::kTake, numbering.into(op)) : Step{};
  }
}

}  // namespace

Network network_of(const Schedule& schedule, PairTakes takes) {
  const Numbering numbering(schedule.placement, schedule.num_microbatches);
  Network network{std::vector<std::vector<Step>>(schedule.rows.size()), numbering.ends()};
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    std::vector<Step>& steps = network.ranks[rank];
    for (const Action& action : schedule.rows[rank]) {
      const auto first = numbering.into(action.op);
      const auto second = action.paired ? numbering.into(*action.paired) : std::nullopt;
      if (takes == PairTakes::kForwardFirst) {
        steps.push_back(step_of(Step::Verb::kTake, first));
        steps.push_back(step_of(Step::Verb::kTake, second));
      } else {
        steps.push_back(take_both(first, second));
      }
      steps.push_back(step_of(Step::Verb::kSend, numbering.out_of(action.op)));
      if (action.paired) {
        steps.push_back(step_of(Step::Verb::kSend, numbering.out_of(*action.paired)));
      }
    }
  }
  post_all(network);
  return network;
}

Network network_of(const Program& program) {
  const Numbering numbering(program.placement, program.num_microbatches);
  Network network{std::vector<std::vector<Step>>(program.rows.size()), numbering.ends()};
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (const Action& action : program.rows[rank]) {
      network.ranks[rank].push_back(action.paired ? take_both(numbering.into(action.op), numbering.into(*action.paired))
                                                  : step_of(numbering, action.op));
    }
  }
  return network;
}

bool edges_agree(const Network& network) {
  using Order = std::map<std::pair<int, int>, std::vector<std::int32_t>>;
  Order sent;
  Order posted;
  for (const std::vector<Step>& steps : network.ranks) {
    for (const Step& step : steps) {
      if (step.verb == Step::Verb::kSend || step.verb == Step::Verb::kPost) {
        const Network::Ends& ends = network.ends[step.messages[0]];
        (step.verb == Step::Verb::kSend ? sent : posted)[{ends.from, ends.to}].push_back(step.messages[0]);
      }
    }
  }
  return sent == posted;
}

}  // namespace dualpipe::stress
