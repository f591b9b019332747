// plugin/runtime/gradient_watch.h
//
// Which rank's own gradients were not finite: looked at before they are summed over the ranks that hold a stage, since
// the sums are the same on all of these.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/runtime/gradient_reduction.h"

namespace dualpipe {

// `reduction`, watched. For gradients that are set aside.
class GradientWatch final : public GradientReduction {
 public:
  explicit GradientWatch(std::unique_ptr<GradientReduction> reduction) : reduction_(std::move(reduction)) {}

  void begin_step() { seen_.clear(); }
  // Starts no synchronization with a device.
  void start(int stage, Gradients& gradients) override;
  void finish(Gradients& gradients) override { reduction_->finish(gradients); }
  // Which parameter's gradient of this step, the first in the order of parameters. Waits for the device.
  std::optional<std::size_t> first() const;

 private:
  struct Seen {
    std::size_t index;
    at::Tensor least, greatest;  // Scalars; NaN where a NaN is in the gradient.
  };
  std::unique_ptr<GradientReduction> reduction_;
  std::vector<Seen> seen_;
};

}  // namespace dualpipe
