// plugin/runtime/phase.h
//
// What a stage computes and communicates, phase by phase, where its module says so (StageModule::phases()). The runtime
// cuts the graph between phases, so that backward runs phase by phase in reverse, and interleaves the phases of a pair
// (plugin/schedule/merge.h).
//
// The inputs of the first phase are the stage's, each other phase takes the outputs of the one before it, and the last
// one's are the stage's. On the last stage the loss is computed within the last phase (within one of its own where that
// is an exchange), and again where that phase recomputes.
//
// Ranks that exchange with each other must have the same phases, costs included, in the same stages of the same
// schedule, and the same PipelineOptions::overlap_phases: the order of all exchanges follows from these alone, never
// from what tensors hold or when they arrive. Each exchange runs once forth and once back per micro-batch, also where
// nothing is to be moved or no gradient came.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/runtime/tensor_form.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/schedule/phase.h"

namespace dualpipe {

// An exchange under way. It keeps alive what it moves.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  // The result, once it is there.
  virtual TensorList wait() = 0;
};

// One micro-batch in one phase, from its F to its I.
struct PhaseContext {
  int micro_batch = 0;
  std::any saved;  // The phase's own, for instance the splits of an exchange. Freed after its I.
};

// Exactly one of `compute` and `exchange` is set, as spec.kind says.
struct Phase {
  PhaseSpec spec;
  // Differentiable operations on leaves, of which those require grad that carry a gradient. Outputs may be inputs.
  // Run again in backward where `recompute` is set: it must give the same outputs for the same micro-batch. Both times
  // under grad mode, so that both take the same kernels; the first graph is dropped with the phase.
  std::function<TensorList(const TensorList& inputs, PhaseContext& context)> compute = {};
  bool recompute = false;  // Keep the inputs alone until backward.

  // Starts the exchange; never waits. Neither it nor wait() is recorded by autograd: the result's tensors require grad
  // where the exchange says so, which it does for those that carry a gradient.
  std::function<std::unique_ptr<PendingExchange>(const TensorList& inputs, PhaseContext& context)> exchange = {};
  // From the gradients of the outputs (undefined where none) those of the inputs. Empty where spec.has_backward is
  // false: then the outputs start with the inputs, as they are, and so do their gradients.
  std::function<std::unique_ptr<PendingExchange>(const TensorList& output_grads, PhaseContext& context)> exchange_back =
      {};

  // What is known of inputs and outputs; nothing: not even how many there are. Phases that do not chain are refused
  // when the pipeline is made, tensors that are not as declared when they come.
  std::optional<TensorForms> takes = {};
  std::optional<TensorForms> gives = {};
};

}  // namespace dualpipe
