#include "examples/custom_overlap/stage.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "examples/custom_overlap/hook.h"

namespace custom_overlap {
namespace {

constexpr int kHidden = 4 * Stage::kWidth;

at::Tensor weight(int rows, int columns) { return at::randn({rows, columns}, at::kDouble) * 0.05; }

dualpipe::Phase compute_phase(const char* name,
                              std::function<dualpipe::TensorList(const dualpipe::TensorList&)> compute) {
  dualpipe::Phase phase;
  phase.spec.name = name;
  phase.compute = [compute = std::move(compute)](const dualpipe::TensorList& inputs, dualpipe::PhaseContext&) {
    return compute(inputs);
  };
  return phase;
}

}  // namespace

Stage::Stage(int number, Offer offer, LinkPtr link) : offer_(offer), link_(std::move(link)) {
  at::manual_seed(1000 + number);
  attention_up_ = register_parameter("attention_up", weight(kHidden, kWidth));
  attention_down_ = register_parameter("attention_down", weight(kWidth, kHidden));
  mlp_up_ = register_parameter("mlp_up", weight(kHidden, kWidth));
  mlp_down_ = register_parameter("mlp_down", weight(kWidth, kHidden));
}

at::Tensor Stage::attend(const at::Tensor& x) const {
  return x + at::linear(at::gelu(at::linear(x, attention_up_)), attention_down_);
}

at::Tensor Stage::feed_forward(const at::Tensor& rows) const {
  return at::linear(at::gelu(at::linear(rows, mlp_up_)), mlp_down_);
}

dualpipe::TensorList Stage::forward(const dualpipe::TensorList& inputs) {
  const at::Tensor h = attend(inputs.at(0));
  const at::Tensor y = feed_forward(exchange(h, Way::kDispatch, link_));
  return {h + exchange(y, Way::kCombine, link_)};
}

dualpipe::OverlapHook Stage::overlapped_forward_backward() {
  return offer_ == Offer::kHook ? overlapped : dualpipe::OverlapHook();
}

// What forward() does. `h` goes on beside the rows that are made of it.
std::vector<dualpipe::Phase> Stage::phases() {
  using dualpipe::TensorList;
  if (offer_ != Offer::kPhases) return {};
  auto sum = compute_phase("sum", [](const TensorList& t) { return TensorList{t.at(0) + t.at(1)}; });
  sum.spec.forward = sum.spec.backward_input = sum.spec.backward_weight = 0.01;
  return {compute_phase("attention",
                        [this](const TensorList& t) {
                          const at::Tensor h = attend(t.at(0));
                          return TensorList{h, h};
                        }),
          exchange_phase("dispatch", Way::kDispatch, link_),
          compute_phase("mlp",
                        [this](const TensorList& t) {
                          return TensorList{t.at(0), feed_forward(t.at(1))};
                        }),
          exchange_phase("combine", Way::kCombine, link_), sum};
}

}  // namespace custom_overlap
