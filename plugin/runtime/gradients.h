// plugin/runtime/gradients.h
//
// The gradients of one rank's stages: where they go (the sink) and under which logical names.
//
// A step adds its own gradients to what earlier steps left and never rescales. Since mirrors exchange what *this* step
// computed, begin_step() sets earlier gradients aside and finish_step() adds them back, where a reduction is in use.
// The sink of a parameter is `.grad`, or a buffer of the host (fp32 `main_grad` of a bf16 weight): there what a
// backward leaves in `.grad` is added to the buffer, in the buffer's dtype, after every B and W, and `.grad` is left
// undefined.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

struct StageParameter {
  std::string name;  // Logical: where stages share the tensor, the name that the lowest of them gives it.
  int stage = 0;     // The stage whose REDUCE_GRAD covers it: of stages that share it (tied weights) the one that the
                     // rank's program reduces last.
  at::Tensor parameter;
  at::Tensor main_grad;          // The host's buffer, of the parameter's shape, any floating dtype; undefined: `.grad`.
  std::vector<int> shared_with;  // The other stages of the rank that use it.
  std::string shard = {};        // Which part of the logical parameter it is (ParallelGroups::shard_of); empty: all.
};

// What a rank trains: parameters that require grad, each tensor once; later reduced stages come first, so the order is
// the same on mirrors. Stages that `reduction_order` lacks come after those that it has. `main_grads` is by logical
// name; those of frozen parameters are ignored. Throws ScheduleError where two tensors of one rank have one logical
// name (they would train apart), or where a buffer fits no parameter.
std::vector<StageParameter> collect_parameters(const std::vector<std::pair<int, std::shared_ptr<StageModule>>>& stages,
                                               const std::vector<int>& reduction_order,
                                               const std::map<std::string, at::Tensor>& main_grads);

// "weight", or "weight (part tp1)": one for all copies of the same values.
std::string full_name(const StageParameter& parameter);

class Gradients {
 public:
  // `set_aside`: keep earlier steps' gradients apart until finish_step().
  Gradients(std::vector<StageParameter> parameters, bool set_aside);

  const std::vector<StageParameter>& parameters() const { return parameters_; }
  // Indices into parameters() of those that the stage's REDUCE_GRAD covers.
  std::vector<std::size_t> indices_of(int stage) const;

  // A `.grad` that the host left beside its buffer is added to the buffer, unless it is the buffer. A begun step that
  // never finished (it failed) is a broken invariant, since its gradients are incomplete.
  void begin_step();
  // Moves `.grad` of the parameters that the stage uses into the host's buffers, where it gave some. Called after every
  // B and W.
  void collect(int stage);
  // What this step computed for a parameter so far: `.grad` or the step's buffer; undefined if nothing did. Only where
  // earlier gradients are set aside.
  at::Tensor& step_gradient(std::size_t index);
  // The sinks keep their tensors: what the step computed is added to what was there, in place.
  void finish_step();

  // The final gradient that an optimizer reads: `.grad` or the host's buffer. May be undefined.
  at::Tensor gradient(std::size_t index) const;

  // Of all gradients that are there now, those set aside too.
  std::size_t bytes() const;

 private:
  void begin(std::size_t index);
  void finish(std::size_t index);

  std::vector<StageParameter> parameters_;
  bool set_aside_;
  bool under_way_ = false;
  TensorList earlier_;  // By parameter; for those without a main_grad, while set aside.
  TensorList step_;     // By parameter; for those with a main_grad, while set aside.
};

}  // namespace dualpipe
