// plugin/compare/phase_samples.h
//
// sample_phases(): what the phases of recorded steps took, by stage and phase.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plugin/compare/run_files.h"

namespace dualpipe::compare {

// Seconds of one phase of a stage, a value per micro-batch and step.
struct PhaseSamples {
  bool is_exchange = false;
  int order = 0;                // Place among the phases of its stage's forward.
  std::vector<double> forward;  // Of an exchange: from posting it to having its result, outside pairs, as the next two.
  std::vector<double> backward_input;
  std::vector<double> backward_weight;
  std::vector<double> backward;        // Where both gradients were computed at once.
  std::vector<double> waited_forward;  // Of an exchange, in pairs too.
  std::vector<double> waited_backward;
};

using StagePhases = std::map<std::string, PhaseSamples>;  // By the phase's own name: "0.attention".

// By stage; all empty where the host wrote no phases. Throws ScheduleError for a phase whose name does not begin with
// the cell of an action of F, B, I or W.
std::vector<StagePhases> sample_phases(const RunFiles& run);

}  // namespace dualpipe::compare
