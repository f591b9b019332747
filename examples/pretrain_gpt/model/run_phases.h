// examples/pretrain_gpt/model/run_phases.h
//
// Phases in order, as one differentiable computation. Of a phase that is to be computed again in backward its inputs
// alone are kept; gradients of its parameters then add up in `.grad` at once, as in any backward.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/pretrain_gpt/model/phase.h"

namespace pretrain_gpt {

// From the inputs of the first phase the outputs of the last. Gradients flow to inputs that require them.
Tensors run_phases(const std::vector<ModelPhase>& phases, Tensors inputs, std::int64_t micro_batch);

}  // namespace pretrain_gpt
