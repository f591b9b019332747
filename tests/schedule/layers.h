// tests/schedule/layers.h
//
// Chunks of transformer layers as phases.
#pragma once

#include <string>

#include "plugin/schedule/phase.h"

namespace dualpipe {

inline PhaseSpec compute(const std::string& name, double cost = 1) {
  return {name, PhaseKind::kCompute, cost, cost, cost};
}

inline PhaseSpec communication(const std::string& name, double cost = 1) {
  return {name, PhaseKind::kCommunication, cost, cost};
}

// Attention, dispatch, mlp and combine per layer; computes cost 1.
inline Phases moe_layers(int layers, double all_to_all = 1) {
  Phases phases;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = std::to_string(layer) + ".";
    phases.push_back(compute(prefix + "attention"));
    phases.push_back(communication(prefix + "dispatch", all_to_all));
    phases.push_back(compute(prefix + "mlp"));
    phases.push_back(communication(prefix + "combine", all_to_all));
  }
  return phases;
}

// Attention and mlp alone.
inline Phases dense_layers(int layers) {
  Phases phases;
  for (const PhaseSpec& phase : moe_layers(layers)) {
    if (phase.kind == PhaseKind::kCompute) {
      phases.push_back(phase);
    }
  }
  return phases;
}

}  // namespace dualpipe
