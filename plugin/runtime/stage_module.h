// plugin/runtime/stage_module.h
//
// A stage: forward from a list of tensors to a list of tensors. The loss is not part of it
// (plugin/runtime/criterion.h).
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "plugin/runtime/criterion.h"
#include "plugin/runtime/phase.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

class StageModule;

// What a model's own overlapped_forward_backward gives back: the outputs of the forward, and its loss where the forward
// was of the last stage (criterion0 not null), unscaled, else undefined.
using OverlapResult = std::pair<TensorList, at::Tensor>;

// The reference's eight arguments. Forward of module0 on inputs0 (and loss by criterion0 on labels0, null where module0
// is not the last stage), and the backward of an earlier forward of module1: from loss1 if it is defined, else from
// outputs1 with output_grads1. The hook leaves gradients in inputs1 (the leaves its forward got) and in the parameters.
using OverlapHook = std::function<OverlapResult(
    StageModule& module0, const TensorList& inputs0, const Criterion* criterion0, const TensorList& labels0,
    StageModule& module1, const at::Tensor& loss1, const TensorList& outputs1, const TensorList& output_grads1)>;

class StageModule : public torch::nn::Module {
 public:
  // Inputs are leaves (or undefined); outputs may be views, non-contiguous, integers, undefined, inputs themselves.
  // What is returned is sent without a copy: it must not be overwritten later (a buffer that is used again, say).
  virtual TensorList forward(const TensorList& inputs) = 0;

  // Told before forward() of a micro-batch (numbered within the step): a host seeds dropout with it. Phases find the
  // number in their PhaseContext instead.
  virtual void begin_micro_batch(int /*micro_batch*/) {}

  // Asked once, when the pipeline is made. Empty: no hook. Used where both modules of a pair are of one type and both
  // offer it.
  virtual OverlapHook overlapped_forward_backward() { return {}; }

  // What forward() does, phase by phase. Asked once, when the pipeline is made. Empty: none. Training runs the phases;
  // pairs of stages that have some interleave them. Evaluation runs forward(). A hook wins: the phases of a module that
  // offers one are not used.
  virtual std::vector<Phase> phases() { return {}; }

  // What counts as the module's type for that: of a wrapped module its own.
  virtual const std::type_info& hook_type() const { return typeid(*this); }

  // The name of a parameter that does not depend on schedule or layout, from its local name as named_parameters() gives
  // it. Two parameters of one name are one logical parameter (a mirror, a tied weight). Default: "stage3.<local name>".
  virtual std::string logical_name(int stage, const std::string& local_name) const;
};

// The tensor of a list of one; throws ScheduleError for any other list.
const at::Tensor& only_tensor(const TensorList& inputs);

// Wraps a module whose forward takes and returns one tensor, or anything else by way of a function. Parameters keep the
// local names that they have in the module. Throws ScheduleError for a null module or an empty function.
std::shared_ptr<StageModule> make_stage(std::shared_ptr<torch::nn::Module> module,
                                        std::function<TensorList(const TensorList&)> forward, OverlapHook hook = {},
                                        std::vector<Phase> phases = {});
template <typename Module>
std::shared_ptr<StageModule> make_stage(std::shared_ptr<Module> module) {
  auto forward = [module](const TensorList& inputs) { return TensorList{module->forward(only_tensor(inputs))}; };
  return make_stage(std::static_pointer_cast<torch::nn::Module>(module), std::move(forward));
}

}  // namespace dualpipe
