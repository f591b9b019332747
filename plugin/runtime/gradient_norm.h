// plugin/runtime/gradient_norm.h
//
// The global L2 norm of all gradients: each logical parameter once (mirrors, tied weights, replicas of data and tensor
// parallelism), each part of one that is divided over ranks (StageParameter::shard) once, in an order that does not
// depend on where they are.
//
// Construction gathers the names of all ranks (a collective); of ranks that hold the same part the lowest counts it,
// together with the members of its group where gradients themselves are sharded. A step's norm: squared norm per part
// in double on its owner, summed over ranks (one contribution and zeros, so exact), then a compensated (Neumaier) sum
// in the order of (name, part). Equal bits on every rank.
//
// Across layouts: with the same parts it depends on the gradients alone, so under all schedules it is the same within
// 2 ulp for float64 models (1e-6 for float32), whose gradients differ by the order of their sums. Another division into
// parts (another tensor-parallel size, sharded gradients) adds the squares of a parameter in other pieces, which moves
// the last bits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/collectives.h"
#include "plugin/runtime/gradients.h"

namespace dualpipe {

// The elements of a parameter's flattened gradient that are final on this rank.
struct GradientPart {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string cut_by = {};  // One text on all ranks among whom the gradient is divided; empty: not divided.
};

class GradientNorm {
 public:
  // `parts` by parameter; without any every gradient is whole. Throws ScheduleError on every rank where one name (of
  // one shard) has two shapes.
  GradientNorm(std::shared_ptr<Collectives> ranks, const Gradients& gradients, std::vector<GradientPart> parts = {});
  // Collective. NaN or infinity where any gradient has one, on whichever of the ranks that hold it: copies that are
  // counted elsewhere are looked at too. Undefined gradients count as zero.
  double compute(const Gradients& gradients);
  // Number of logical parameters over all ranks; a shard of one is one.
  std::size_t size() const { return size_; }

 private:
  at::Tensor own_part(const Gradients& gradients, std::size_t parameter) const;

  std::shared_ptr<Collectives> ranks_;
  std::vector<GradientPart> parts_;                // By local parameter; empty: all whole.
  std::vector<std::optional<std::int64_t>> slot_;  // By local parameter: index into `squares`; none: others count it.
  std::int64_t slots_ = 0;
  std::size_t size_ = 0;
};

// g *= min(1, max_norm / (norm + 1e-6)) as torch.nn.utils.clip_grad_norm_. Nothing where max_norm is 0, norm <=
// max_norm, or the norm is not finite: such a step is the caller's to skip.
void clip_gradients(const Gradients& gradients, double norm, double max_norm);

}  // namespace dualpipe
