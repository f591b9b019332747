#include "plugin/schedule/write_pair.h"

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

class PairWriter {
 public:
  PairWriter(const Phases& forward, const Phases& backward) : chains_(make_chains(forward, backward)) {
    program_.forward = forward;
    program_.backward = backward;
  }

  void write(PhasePart part) {
    if (part != PhasePart::kWeight) {
      write_needs(part);
    }
    const ChainLink& link = chains_.of(part)[state_.started(part)];
    const bool computes = link.kind == PhaseKind::kCompute;
    program_.steps.push_back({computes ? PairStepKind::kRun : PairStepKind::kPost, part, link.phase});
    move(chains_, state_, part);
    send_what_is_due(false);
  }

  PairProgram finish() {
    check(ended(PhasePart::kForward) && ended(PhasePart::kInput) && ended(PhasePart::kWeight),
          "the order of a pair takes every part");
    send_what_is_due(true);
    return program_;
  }

 private:
  bool ended(PhasePart part) const { return state_.started(part) == static_cast<int>(chains_.of(part).size()); }

  bool waits(PhasePart part) const {
    const int link = state_.started(part) - 1;
    return link >= 0 && chains_.of(part)[link].kind == PhaseKind::kCommunication;
  }

  void write_wait(PhasePart part) {
    program_.steps.push_back({PairStepKind::kWait, part, chains_.of(part)[state_.started(part) - 1].phase});
  }

  void write_take(PhasePart part) {
    program_.steps.push_back({part == PhasePart::kForward ? PairStepKind::kTakeInputs : PairStepKind::kTakeGradients});
  }

  void write_needs(PhasePart part) {
    if (waits(part)) {
      write_wait(part);
    }
    if (state_.started(part) == 0) {
      write_take(part);
    }
  }

  void send_what_is_due(bool at_end) {
    if (!sent_outputs_ && is_due(PhasePart::kForward, at_end)) {
      if (waits(PhasePart::kForward)) {
        write_wait(PhasePart::kForward);
      }
      program_.steps.push_back({PairStepKind::kSendOutputs});
      sent_outputs_ = true;
    }
    if (!sent_gradients_ && is_due(PhasePart::kInput, at_end)) {
      if (waits(PhasePart::kInput)) {
        write_wait(PhasePart::kInput);
      }
      if (chains_.input.empty()) {
        write_take(PhasePart::kInput);
      }
      program_.steps.push_back({PairStepKind::kSendGradients});
      sent_gradients_ = true;
    }
  }

  // A wait may take longer than it should: what others wait for is posted first.
  bool is_due(PhasePart part, bool at_end) const {
    const bool arrived = state_.arrival(part) <= state_.now && !must_post(chains_, state_, PhasePart::kForward) &&
                         !must_post(chains_, state_, PhasePart::kInput);
    return ended(part) && (at_end || !waits(part) || arrived);
  }

  PairChains chains_;
  PairState state_;
  PairProgram program_;
  bool sent_outputs_ = false;
  bool sent_gradients_ = false;
};

}  // namespace

PairProgram write_pair(const Phases& forward, const Phases& backward, const PairOrder& order) {
  PairWriter writer(forward, backward);
  for (const PhasePart part : order) {
    writer.write(part);
  }
  return writer.finish();
}

}  // namespace dualpipe
