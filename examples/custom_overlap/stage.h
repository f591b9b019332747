// examples/custom_overlap/stage.h
//
// One layer with experts elsewhere: attention, dispatch, MLP, combine. The two computes are plain MLPs here, which take
// about as long as each other.
#pragma once

#include <memory>
#include <vector>

#include "examples/custom_overlap/exchange.h"
#include "plugin/runtime/stage_module.h"

namespace custom_overlap {

// What the stage offers its pipeline.
enum class Offer { kNothing, kHook, kPhases };

class Stage : public dualpipe::StageModule {
 public:
  // The same weights for the same number, in every process.
  Stage(int number, Offer offer, LinkPtr link);

  // {[rows, kWidth]} -> {[rows, kWidth]}
  dualpipe::TensorList forward(const dualpipe::TensorList& inputs) override;
  dualpipe::OverlapHook overlapped_forward_backward() override;
  std::vector<dualpipe::Phase> phases() override;

  // The pieces.
  at::Tensor attend(const at::Tensor& x) const;
  at::Tensor feed_forward(const at::Tensor& rows) const;
  const LinkPtr& link() const { return link_; }

  static constexpr int kWidth = 128;

 private:
  Offer offer_;
  LinkPtr link_;
  at::Tensor attention_up_, attention_down_, mlp_up_, mlp_down_;
};

}  // namespace custom_overlap
