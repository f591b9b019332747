// examples/two_linears/stage.h
//
// The stage of both examples: two linear layers and a GELU. The layers put their weight gradients into the executor's
// store by closures of their own (plugin/runtime/nn/linear.h), and the stage offers a hook for overlapped pairs.
#pragma once

#include <memory>

#include "plugin/runtime/nn/linear.h"
#include "plugin/runtime/stage_module.h"

namespace two_linears {

class Stage : public dualpipe::StageModule {
 public:
  explicit Stage(int width);

  // {[rows, width]} -> {[rows, width]}
  dualpipe::TensorList forward(const dualpipe::TensorList& inputs) override;
  dualpipe::OverlapHook overlapped_forward_backward() override;

 private:
  dualpipe::nn::Linear up_;
  dualpipe::nn::Linear down_;
};

// The stage number `stage` of the model, with the same weights (float64) in every process.
std::shared_ptr<Stage> make_stage(int stage, int width);

}  // namespace two_linears
