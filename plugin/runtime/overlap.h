// plugin/runtime/overlap.h
//
// How the forward and the backward of an overlapped pair run. A pair drives the transport between its parts: what it
// needs it takes from PairIo when it needs it, and what it has finished it sends at once. No threads.
#pragma once

#include "plugin/runtime/stage_graph.h"
#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/schedule/merge.h"

namespace dualpipe {

// One pair, as the executor offers it: the forward of one micro-batch and the backward of another.
class PairIo {
 public:
  virtual ~PairIo() = default;

  // The forward's. The first call waits for its inputs.
  virtual StageGraph& graph0() = 0;
  virtual const Criterion* criterion0() = 0;  // Null where the forward is not of the last stage.
  virtual const TensorList& labels0() = 0;

  // The backward's, and what it starts from: one gradient per output, for which this waits, or on the last stage that
  // of the loss alone. Called once.
  virtual StageGraph& graph1() = 0;
  virtual TensorList gradients1() = 0;

  // The forward's results, which go to the next stage now. Called once.
  virtual void send_outputs(StageOutputs outputs0) = 0;
  // The gradients of the backward's inputs, which go to the previous stage: on this rank now, to another one behind the
  // outputs, since both may leave over one link, whose receiver expects the outputs first. Called once.
  virtual void send_gradients(TensorList input_grads1) = 0;

  // The closing of the pair before, where it was put off. Called once, behind the opening.
  virtual void close_previous() = 0;
};

// By a model's own overlapped_forward_backward. Both graphs are WholeGraphs.
void run_by_hook(PairIo& pair, const OverlapHook& hook);
// By a merged program, but for its closing. Both graphs are PhasedGraphs.
void run_by_phases(PairIo& pair, const PairProgram& program);
// Its closing, which may run behind the opening of the pair that comes next.
void close_by_phases(PairIo& pair, const PairProgram& program);

}  // namespace dualpipe
