// plugin/runtime/gradient_norm.h
//
// The global L2 norm of all gradients of a pipeline: each logical parameter once (mirrors, tied weights), in an order
// that does not depend on the layout.
//
// Construction gathers the logical names of all ranks (a collective); of ranks that hold the same name the lowest
// counts it. A step's norm: squared norm per parameter in double on its owner, summed over ranks (one contribution and
// zeros, so exact), then a compensated (Neumaier) sum in the order of the sorted names. Equal bits on every rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugin/runtime/gradients.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

class GradientNorm {
 public:
  // Throws ScheduleError on every rank where one name has two shapes.
  GradientNorm(std::shared_ptr<Transport> transport, const Gradients& gradients);
  // Collective. NaN or infinity where any gradient has one. Undefined gradients count as zero.
  double compute(const Gradients& gradients);
  // Number of logical parameters over all ranks.
  std::size_t size() const { return size_; }

 private:
  std::shared_ptr<Transport> transport_;
  std::vector<std::ptrdiff_t> slot_;  // By local parameter: index into the sorted names, -1 if another rank counts it.
  std::size_t size_ = 0;
};

// g *= min(1, max_norm / (norm + 1e-6)) as torch.nn.utils.clip_grad_norm_. Nothing where max_norm is 0, norm <=
// max_norm, or the norm is not finite: such a step is the caller's to skip.
void clip_gradients(const Gradients& gradients, double norm, double max_norm);

}  // namespace dualpipe
