// tests/runtime/phased_stage.h
//
// Stages of layers that exchange rows between attention and MLP, phase by phase, beside the same layers as one function
// of plain operations. The exchange stays within the rank: it rotates and scales rows when it is awaited, and a log
// says when it was posted and awaited.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/runtime/phase.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe {

enum class LayerKind {
  kMoe,    // attention, sizes (an exchange without a way back), dispatch, mlp, combine
  kDense,  // attention, mlp
};

struct PhasedStageOptions {
  std::vector<LayerKind> layers{LayerKind::kMoe, LayerKind::kMoe};
  bool ends_in_combine = false;  // The stage gives its last layer's two tensors as they are.
  bool phased = true;            // False: forward() alone.
  bool recompute = false;        // Of attention and MLP.
  std::vector<double> costs{};   // Of the phases, in turn; F, I and W alike. Empty: 1.
  // What happens to exchanges and computes, "post 0.dispatch", "wait 0.dispatch", "compute 0.mlp"; may throw.
  std::function<void(const std::string& what)> log = [](const std::string&) {};
  // What each attention multiplies with, and saves for backward. Empty: a scalar.
  std::function<at::Tensor(at::IntArrayRef sizes)> ones = {};
};

// Float64, 8 wide, weights by stage. Takes one tensor [rows, 8], or the two that a stage that ends in combine gives.
// Between phases there are integers, an undefined tensor and tensors that pass through.
std::shared_ptr<StageModule> phased_stage(int stage, const PhasedStageOptions& options = {});

}  // namespace dualpipe
