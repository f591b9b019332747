#include "examples/two_linears/stage.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace two_linears {
namespace {

// Here the two parts simply follow one another. A model that has communication to hide starts it in one part and waits
// for it in the other.
dualpipe::OverlapResult overlapped(dualpipe::StageModule& module0, const dualpipe::TensorList& inputs0,
                                   const dualpipe::Criterion* criterion0, const dualpipe::TensorList& labels0,
                                   dualpipe::StageModule&, const at::Tensor& loss1,
                                   const dualpipe::TensorList& outputs1, const dualpipe::TensorList& output_grads1) {
  dualpipe::TensorList outputs0 = module0.forward(inputs0);
  const at::Tensor loss0 = criterion0 ? criterion0->loss(outputs0, labels0) : at::Tensor();
  if (loss1.defined()) {
    loss1.backward();
  } else {
    torch::autograd::backward(outputs1, output_grads1);
  }
  return {std::move(outputs0), loss0};
}

}  // namespace

Stage::Stage(int width)
    : up_(register_module("up", dualpipe::nn::Linear(width, 4 * width))),
      down_(register_module("down", dualpipe::nn::Linear(4 * width, width))) {
  to(at::kDouble);
}

dualpipe::TensorList Stage::forward(const dualpipe::TensorList& inputs) {
  return {down_->forward(at::gelu(up_->forward(inputs.at(0))))};
}

dualpipe::OverlapHook Stage::overlapped_forward_backward() { return overlapped; }

std::shared_ptr<Stage> make_stage(int stage, int width) {
  at::manual_seed(1000 + stage);
  return std::make_shared<Stage>(width);
}

}  // namespace two_linears
