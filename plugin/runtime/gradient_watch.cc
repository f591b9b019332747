#include "plugin/runtime/gradient_watch.h"

#include <ATen/Functions.h>

#include <cmath>
#include <tuple>

namespace dualpipe {
namespace {

bool is_watched(const at::Tensor& gradient) {
  return gradient.defined() && gradient.numel() > 0 && gradient.is_floating_point() &&
         gradient.layout() == at::kStrided;
}

}  // namespace

void GradientWatch::start(int stage, Gradients& gradients) {
  for (const std::size_t index : gradients.indices_of(stage)) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    if (!is_watched(gradient)) continue;
    auto [least, greatest] = at::aminmax(gradient.detach());
    seen_.push_back({index, std::move(least), std::move(greatest)});
  }
  reduction_->start(stage, gradients);
}

std::optional<std::size_t> GradientWatch::first() const {
  std::optional<std::size_t> first;
  for (const auto& [index, least, greatest] : seen_) {
    if (std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>())) continue;
    if (!first || index < *first) first = index;
  }
  return first;
}

}  // namespace dualpipe
