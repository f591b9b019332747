#include <map>
#include <optional>

#include "plugin/schedule/merge.h"

namespace dualpipe {
namespace {

using Part = std::pair<PhasePart, int>;

enum class Progress { kPosted, kDone };

class PairCheck {
 public:
  explicit PairCheck(const PairProgram& program) : program_(program) {}

  std::string run() {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (const std::string fault = take(program_.steps[i]); !fault.empty()) {
        return "step " + std::to_string(i) + ": " + fault;
      }
    }
    return find_missing();
  }

 private:
  static bool names_a_phase(const PairStep& step) {
    return step.kind == PairStepKind::kRun || step.kind == PairStepKind::kPost || step.kind == PairStepKind::kWait;
  }

  // "" where the step may stand here, and then it counts as done.
  std::string take(const PairStep& step) { return names_a_phase(step) ? take_phase(step) : take_hand_over(step.kind); }

  std::string take_phase(const PairStep& step) {
    const bool forward = step.part == PhasePart::kForward;
    const Phases& phases = forward ? program_.forward : program_.backward;
    if (step.phase < 0 || step.phase >= static_cast<int>(phases.size())) {
      return "the " + std::string(forward ? "forward" : "backward") + " has " + std::to_string(phases.size()) +
             " phases, but phase " + std::to_string(step.phase) + " is named";
    }
    const Part part{step.part, step.phase};
    if (!exists(part, step.kind)) {
      return name(part) + " is no such step";
    }
    return step.kind == PairStepKind::kWait ? take_wait(part) : take_start(part, step.kind);
  }

  bool exists(const Part& part, PairStepKind kind) const {
    const PhaseSpec& spec = (part.first == PhasePart::kForward ? program_.forward : program_.backward)[part.second];
    if (kind == PairStepKind::kRun) {
      return spec.kind == PhaseKind::kCompute;
    }
    if (spec.kind == PhaseKind::kCompute || part.first == PhasePart::kWeight) {
      return false;
    }
    return part.first == PhasePart::kForward || spec.has_backward;
  }

  std::string take_start(const Part& part, PairStepKind kind) {
    if (progress_.contains(part)) {
      return name(part) + " stands twice";
    }
    if (const std::string needed = find_unmet(part); !needed.empty()) {
      return name(part) + " stands before " + needed;
    }
    progress_[part] = kind == PairStepKind::kRun ? Progress::kDone : Progress::kPosted;
    return "";
  }

  std::string take_wait(const Part& part) {
    const auto found = progress_.find(part);
    if (found == progress_.end()) {
      return name(part) + " is awaited before it is posted";
    }
    if (found->second == Progress::kDone) {
      return name(part) + " is awaited twice";
    }
    found->second = Progress::kDone;
    return "";
  }

  // The part whose result this one computes on or exchanges; nothing for the first of its chain.
  std::optional<Part> producer_of(const Part& part) const {
    if (part.first == PhasePart::kWeight) {
      return Part{PhasePart::kInput, part.second};
    }
    if (part.first == PhasePart::kForward) {
      return part.second > 0 ? std::optional(Part{PhasePart::kForward, part.second - 1}) : std::nullopt;
    }
    return last_of_backward(part.second + 1);
  }

  // The nearest phase from `first` on that has a way back.
  std::optional<Part> last_of_backward(int first) const {
    for (int phase = first; phase < static_cast<int>(program_.backward.size()); ++phase) {
      if (has_input_part(phase)) {
        return Part{PhasePart::kInput, phase};
      }
    }
    return std::nullopt;
  }

  bool has_input_part(int phase) const {
    return program_.backward[phase].kind == PhaseKind::kCompute || program_.backward[phase].has_backward;
  }

  std::string find_unmet(const Part& part) const {
    if (const std::optional<Part> producer = producer_of(part)) {
      return find_unmet_result(*producer);
    }
    if (part.first == PhasePart::kForward) {
      return took_inputs_ ? "" : "the inputs are taken";
    }
    return took_gradients_ ? "" : "the gradients are taken";
  }

  std::string find_unmet_result(const Part& part) const {
    const auto found = progress_.find(part);
    if (found != progress_.end() && found->second == Progress::kDone) {
      return "";
    }
    return found == progress_.end() ? name(part) : name(part) + " is awaited";
  }

  std::string take_hand_over(PairStepKind kind) {
    switch (kind) {
      case PairStepKind::kTakeInputs:
        return set_once(took_inputs_, "the inputs are taken");
      case PairStepKind::kTakeGradients:
        return set_once(took_gradients_, "the gradients are taken");
      case PairStepKind::kSendOutputs:
        return take_send(sent_outputs_, "the outputs are sent", find_unmet_outputs());
      default:
        return take_send(sent_gradients_, "the gradients are sent", find_unmet_gradients());
    }
  }

  static std::string set_once(bool& done, const std::string& what) {
    if (done) {
      return what + " twice";
    }
    done = true;
    return "";
  }

  static std::string take_send(bool& done, const std::string& what, const std::string& unmet) {
    return unmet.empty() ? set_once(done, what) : what + " before " + unmet;
  }

  std::string find_unmet_outputs() const {
    const int last = static_cast<int>(program_.forward.size()) - 1;
    if (last < 0) {
      return took_inputs_ ? "" : "the inputs are taken";
    }
    return find_unmet_result({PhasePart::kForward, last});
  }

  std::string find_unmet_gradients() const {
    if (const std::optional<Part> last = last_of_backward(0)) {
      return find_unmet_result(*last);
    }
    return took_gradients_ ? "" : "the gradients are taken";
  }

  std::string find_missing() const {
    for (int phase = 0; phase < static_cast<int>(program_.forward.size()); ++phase) {
      if (const std::string fault = find_missing(Part{PhasePart::kForward, phase}); !fault.empty()) {
        return fault;
      }
    }
    for (int phase = 0; phase < static_cast<int>(program_.backward.size()); ++phase) {
      if (const std::string fault = find_missing_backward(phase); !fault.empty()) {
        return fault;
      }
    }
    return !sent_outputs_ ? "the outputs are never sent" : !sent_gradients_ ? "the gradients are never sent" : "";
  }

  std::string find_missing_backward(int phase) const {
    std::string fault = has_input_part(phase) ? find_missing(Part{PhasePart::kInput, phase}) : "";
    if (fault.empty() && program_.backward[phase].kind == PhaseKind::kCompute) {
      fault = find_missing(Part{PhasePart::kWeight, phase});
    }
    return fault;
  }

  std::string find_missing(const Part& part) const {
    const auto found = progress_.find(part);
    if (found == progress_.end()) {
      return name(part) + " stands nowhere";
    }
    return found->second == Progress::kDone ? "" : name(part) + " is never awaited";
  }

  std::string name(const Part& part) const { return name_of(program_, part.first, part.second); }

  const PairProgram& program_;
  std::map<Part, Progress> progress_;
  bool took_inputs_ = false;
  bool took_gradients_ = false;
  bool sent_outputs_ = false;
  bool sent_gradients_ = false;
};

}  // namespace

std::string why_invalid(const PairProgram& program) { return PairCheck(program).run(); }

}  // namespace dualpipe
