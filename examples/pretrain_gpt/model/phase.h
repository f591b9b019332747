// examples/pretrain_gpt/model/phase.h
//
// What a chunk of the model computes and communicates, phase by phase, for schedules that interleave the phases of two
// micro-batches. Running all of them in order is GptChunk::forward().
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pretrain_gpt {

using Tensors = std::vector<at::Tensor>;

// A communication under way; it keeps alive what it moves.
class PendingTensors {
 public:
  virtual ~PendingTensors() = default;
  virtual Tensors wait() = 0;
};

// One micro-batch in one phase, from its forward to its backward.
struct PhaseState {
  std::int64_t micro_batch = 0;  // Of the step, over all data-parallel ranks.
  std::any saved;                // The phase's own.
};

// What is known of a tensor before there is one.
struct TensorForm {
  std::optional<at::ScalarType> dtype;
  std::optional<std::vector<std::optional<std::int64_t>>> sizes;  // Nothing: nor how many dimensions.
};

// Either `compute`, or `exchange` with or without its way back.
struct ModelPhase {
  std::string name;  // "3.attention"
  // What its parts cost relative to each other: F, I and W of a compute phase, F and I of an exchange.
  double forward = 1, backward_input = 1, backward_weight = 1;
  bool recompute = false;  // Compute alone: keep the inputs and compute again in backward.

  std::function<Tensors(const Tensors& inputs, PhaseState& state)> compute;
  // Never waits. Results require grad where they carry a gradient.
  std::function<std::unique_ptr<PendingTensors>(const Tensors& inputs, PhaseState& state)> exchange;
  // Gradients of the inputs from those of the outputs. Empty: the outputs start with the inputs as they are.
  std::function<std::unique_ptr<PendingTensors>(const Tensors& output_gradients, PhaseState& state)> exchange_back;

  // Inputs and outputs, for a schedule to refuse phases that do not chain; nothing: not even how many there are.
  std::optional<std::vector<TensorForm>> takes, gives;
};

}  // namespace pretrain_gpt
