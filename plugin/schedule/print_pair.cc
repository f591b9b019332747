#include <algorithm>

#include "plugin/schedule/merge.h"

namespace dualpipe {
namespace {

// What is under way on the link, in its order.
struct Travelling {
  PairStep post;
  bool shown = false;
};

struct Line {
  std::string left;
  std::string right;
};

bool is_wait_for(const PairStep& wait, const PairStep& post) {
  return wait.part == post.part && wait.phase == post.phase;
}

class PairPrinter {
 public:
  explicit PairPrinter(const PairProgram& program) : program_(program) {
    for (const PairStep& step : program.steps) {
      add(step);
    }
  }

  std::string text() const {
    std::size_t width = 0;
    for (const Line& line : lines_) {
      width = line.right.empty() ? width : std::max(width, line.left.size());
    }
    std::string text;
    for (const Line& line : lines_) {
      text += line.left;
      if (!line.right.empty()) {
        text += std::string(width - line.left.size(), ' ') + "  | " + line.right;
      }
      text += "\n";
    }
    return text;
  }

 private:
  void add(const PairStep& step) {
    switch (step.kind) {
      case PairStepKind::kRun:
        return add_compute(name_of(program_, step.part, step.phase));
      case PairStepKind::kPost:
        return travelling_.push_back({step});
      case PairStepKind::kWait:
        return arrive(step);
      default:
        return lines_.push_back({to_string(program_, step), ""});
    }
  }

  void add_compute(const std::string& name) {
    std::string beside;
    for (Travelling& one : travelling_) {
      beside += (beside.empty() ? "" : ", ") + name_of(program_, one.post.part, one.post.phase);
      one.shown = true;
    }
    lines_.push_back({name, beside});
  }

  void arrive(const PairStep& wait) {
    const auto found = std::find_if(travelling_.begin(), travelling_.end(),
                                    [&](const Travelling& one) { return is_wait_for(wait, one.post); });
    if (found == travelling_.end()) {
      return;
    }
    if (!found->shown) {
      add_compute("(idle)");
    }
    travelling_.erase(found);
  }

  const PairProgram& program_;
  std::vector<Travelling> travelling_;
  std::vector<Line> lines_;
};

}  // namespace

std::string name_of(const PairProgram& program, PhasePart part, int phase) {
  const PhaseSpec& spec = (part == PhasePart::kForward ? program.forward : program.backward).at(phase);
  switch (part) {
    case PhasePart::kForward:
      return spec.name + "(F)";
    case PhasePart::kInput:
      return spec.name + (spec.kind == PhaseKind::kCompute ? "(I)" : "(B)");
    default:
      return spec.name + "(W)";
  }
}

std::string to_string(const PairProgram& program, const PairStep& step) {
  switch (step.kind) {
    case PairStepKind::kRun:
      return "run " + name_of(program, step.part, step.phase);
    case PairStepKind::kPost:
      return "post " + name_of(program, step.part, step.phase);
    case PairStepKind::kWait:
      return "wait " + name_of(program, step.part, step.phase);
    case PairStepKind::kTakeInputs:
      return "take inputs";
    case PairStepKind::kTakeGradients:
      return "take gradients";
    case PairStepKind::kSendOutputs:
      return "send outputs";
    default:
      return "send gradients";
  }
}

std::string print(const PairProgram& program) { return PairPrinter(program).text(); }

}  // namespace dualpipe
