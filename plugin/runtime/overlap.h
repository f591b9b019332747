// plugin/runtime/overlap.h
//
// How the forward and the backward of an overlapped pair run. An overlapped pair may drive the transport between its
// parts: what it needs it takes from PairIo when it needs it, and what it has finished it sends at once.
#pragma once

#include <optional>
#include <string>

#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

// One pair, as the executor offers it: the forward of module0 and the backward of module1.
class PairIo {
 public:
  virtual ~PairIo() = default;

  virtual StageModule& module0() = 0;
  virtual StageModule& module1() = 0;
  virtual const Criterion* criterion0() = 0;  // Null where module0 is not the last stage.
  virtual const TensorList& labels0() = 0;

  // The forward's inputs. Waits for them at the first call.
  virtual const TensorList& inputs0() = 0;
  // The backward's ingredients: the scaled loss of the last stage, or the gradients of its outputs, for which the first
  // call waits. The outputs are stand-ins: right graph, shape and dtype, no values, which were freed once sent.
  virtual at::Tensor loss1() = 0;
  virtual TensorList outputs1() = 0;
  virtual const TensorList& output_grads1() = 0;
  virtual const TensorList& inputs1() = 0;

  // The forward's results, which go to the next stage now. Called once, before finish_backward: both may leave over the
  // same link, whose receiver expects the forward's first.
  virtual void finish_forward(TensorList outputs0, at::Tensor loss0) = 0;
  // The gradients of inputs1, which go to the previous stage now.
  virtual void finish_backward(TensorList input_grads1) = 0;

  // The forward and the backward as they run on their own.
  virtual void run_forward() = 0;
  virtual void run_backward() = 0;
};

// One side of a pair, as far as the choice of a hook goes.
struct HookOffer {
  int stage;
  const StageModule& module;
  bool offers;
};

// Why two modules have no hook in common; nothing where they have one.
std::optional<std::string> why_no_hook(const HookOffer& module0, const HookOffer& module1);

// F, then B.
void run_in_sequence(PairIo& pair);
// By module0's own overlapped_forward_backward.
void run_by_hook(PairIo& pair, const OverlapHook& hook);

}  // namespace dualpipe
