// plugin/runtime/phase.h
//
// What a stage computes and communicates, phase by phase, where its module says so (StageModule::phases()). The runtime
// cuts the graph between phases, so that backward runs phase by phase in reverse, and interleaves the phases of a pair
// (plugin/schedule/merge.h).
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <vector>

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
using Pending = std::unique_ptr<PendingExchange>;

// One micro-batch in one phase, from its F to its last W.
struct PhaseContext {
  int micro_batch = 0;
  std::any saved;  // The phase's own, for instance the splits of an exchange.
};

// Exactly one of `compute` and `exchange` is set, as spec.kind says.
struct Phase {
  PhaseSpec spec;
  // Differentiable operations on leaves, of which those require grad that carry a gradient. Outputs may be inputs.
  // Run again in backward where `recompute` is set: it must give the same outputs for the same micro-batch.
  std::function<TensorList(const TensorList& inputs, PhaseContext& context)> compute = {};
  bool recompute = false;  // Keep the inputs alone until backward.

  // Starts the exchange; never waits. The result's tensors require grad where they carry a gradient.
  std::function<Pending(const TensorList& inputs, PhaseContext& context)> exchange = {};
  // From the gradients of the outputs (undefined where none) those of the inputs. Empty where spec.has_backward is
  // false: then the outputs start with the inputs, as they are, and so do their gradients.
  std::function<Pending(const TensorList& output_grads, PhaseContext& context)> exchange_back = {};
};

}  // namespace dualpipe
