#include "plugin/schedule/merge.h"

#include <cmath>
#include <optional>
#include <sstream>

#include "plugin/schedule/balanced_order.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/faster_order.h"
#include "plugin/schedule/pair_clock.h"
#include "plugin/schedule/write_pair.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "merge";
constexpr double kGain = 1e-9;

std::string text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

void check_cost(const PhaseSpec& phase, const char* part, double cost) {
  if (!std::isfinite(cost) || cost < 0) {
    throw ScheduleError(kOrigin, std::string(part) + " of phase '" + phase.name +
                                     "' must be a finite number of at least 0, such as 1, got " + text(cost));
  }
}

void check_phases(const char* side, const Phases& phases) {
  if (phases.empty()) {
    throw ScheduleError(kOrigin, std::string(side) + " must have at least 1 phase, got 0; a single compute works");
  }
  for (const PhaseSpec& phase : phases) {
    check_cost(phase, "forward", phase.forward);
    check_cost(phase, "backward_input", phase.backward_input);
    check_cost(phase, "backward_weight", phase.backward_weight);
  }
}

void check_sides(const Phases& forward, const Phases& backward) {
  check_phases("the forward", forward);
  check_phases("the backward", backward);
}

class SequenceWriter {
 public:
  SequenceWriter(const Phases& forward, const Phases& backward) : chains_(make_chains(forward, backward)) {
    program_.forward = forward;
    program_.backward = backward;
  }

  PairProgram write() {
    add(PairStepKind::kTakeInputs);
    for (const ChainLink& link : chains_.forward) {
      add(PhasePart::kForward, link);
    }
    add(PairStepKind::kSendOutputs);
    add(PairStepKind::kTakeGradients);
    for (std::size_t link = 0; link < chains_.input.size(); ++link) {
      add_backward(link);
    }
    if (chains_.input.empty()) {
      add(PairStepKind::kSendGradients);
    }
    return program_;
  }

 private:
  void add(PairStepKind kind) { program_.steps.push_back({kind}); }

  void add(PhasePart part, const ChainLink& link) {
    if (link.kind == PhaseKind::kCompute) {
      program_.steps.push_back({PairStepKind::kRun, part, link.phase});
    } else {
      program_.steps.push_back({PairStepKind::kPost, part, link.phase});
      program_.steps.push_back({PairStepKind::kWait, part, link.phase});
    }
  }

  void add_backward(std::size_t link) {
    add(PhasePart::kInput, chains_.input[link]);
    if (link + 1 == chains_.input.size()) {
      add(PairStepKind::kSendGradients);
    }
    if (chains_.input[link].kind == PhaseKind::kCompute) {
      add(PhasePart::kWeight, chains_.input[link]);
    }
  }

  PairChains chains_;
  PairProgram program_;
};

}  // namespace

PairProgram merge(const Phases& forward, const Phases& backward, const MergeOptions& options) {
  check_sides(forward, backward);
  if (!std::isfinite(options.slowdown) || options.slowdown < 1) {
    throw ScheduleError(kOrigin,
                        "slowdown must be a finite number of at least 1 (1: none), got " + text(options.slowdown));
  }
  const PairChains chains = make_chains(forward, backward);
  PairProgram program = write_pair(forward, backward, balanced_order(chains));
  if (const std::optional<PairOrder> order = faster_order(chains, makespan(program, {}))) {
    PairProgram faster = write_pair(forward, backward, *order);
    if (makespan(faster, options) < makespan(program, options) * (1 - kGain)) {
      program = std::move(faster);
    }
  }
  return program;
}

PairProgram in_sequence(const Phases& forward, const Phases& backward) {
  check_sides(forward, backward);
  return SequenceWriter(forward, backward).write();
}

}  // namespace dualpipe
