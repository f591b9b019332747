#include "examples/custom_overlap/hook.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "examples/custom_overlap/stage.h"

namespace custom_overlap {
namespace {

// Stage::forward in three steps, each of which ends where an exchange is posted.
class ForwardInSteps {
 public:
  ForwardInSteps(const Stage& stage, const dualpipe::TensorList& inputs) : stage_(stage), values_(inputs.at(0)) {}

  void next() {
    const at::AutoGradMode grad_mode(true);  // A backward is under way, which has none.
    switch (steps_++) {
      case 0:
        kept_ = values_ = stage_.attend(values_);
        arrival_ = stage_.link()->post();
        break;
      case 1:
        values_ = stage_.feed_forward(arrive(values_, Way::kDispatch, stage_.link(), arrival_));
        arrival_ = stage_.link()->post();
        break;
      default:
        values_ = kept_ + arrive(values_, Way::kCombine, stage_.link(), arrival_);
    }
  }
  dualpipe::TensorList finish() {
    while (steps_ < kSteps) next();
    return {values_};
  }

 private:
  static constexpr int kSteps = 3;

  const Stage& stage_;
  int steps_ = 0;
  at::Tensor values_;
  at::Tensor kept_;
  Link::Arrival arrival_;
};

// Lets a link's backward do something meanwhile, also where one throws.
class Meanwhile {
 public:
  Meanwhile(Link& link, std::function<void()> step) : link_(link) { link_.meanwhile = std::move(step); }
  ~Meanwhile() { link_.meanwhile = {}; }
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

 private:
  Link& link_;
};

}  // namespace

dualpipe::OverlapResult overlapped(dualpipe::StageModule& module0, const dualpipe::TensorList& inputs0,
                                   const dualpipe::Criterion* criterion0, const dualpipe::TensorList& labels0,
                                   dualpipe::StageModule& module1, const at::Tensor& loss1,
                                   const dualpipe::TensorList& outputs1, const dualpipe::TensorList& output_grads1) {
  ForwardInSteps forward(static_cast<Stage&>(module0), inputs0);
  {
    const Meanwhile meanwhile(*static_cast<Stage&>(module1).link(), [&forward] { forward.next(); });
    if (loss1.defined()) {
      loss1.backward();
    } else {
      torch::autograd::backward(outputs1, output_grads1);
    }
  }
  dualpipe::TensorList outputs0 = forward.finish();
  const at::Tensor loss0 = criterion0 ? criterion0->loss(outputs0, labels0) : at::Tensor();
  return {std::move(outputs0), loss0};
}

}  // namespace custom_overlap
