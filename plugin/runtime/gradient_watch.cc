#include "plugin/runtime/gradient_watch.h"

#include <tuple>
#include <utility>

#include "plugin/runtime/non_finite.h"

namespace dualpipe {

void GradientWatch::start(int stage, Gradients& gradients) {
  for (const std::size_t index : gradients.indices_of(stage)) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    if (!can_be_bad(gradient) || gradient.layout() != at::kStrided) continue;
    auto [least, greatest] = extremes(gradient);
    seen_.push_back({index, std::move(least), std::move(greatest)});
  }
  reduction_->start(stage, gradients);
}

std::optional<std::size_t> GradientWatch::first() const {
  std::optional<std::size_t> first;
  for (const auto& [index, least, greatest] : seen_) {
    if (are_finite(least, greatest)) continue;
    if (!first || index < *first) first = index;
  }
  return first;
}

}  // namespace dualpipe
