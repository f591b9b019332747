// examples/pretrain_gpt/gradient_norm.h
//
// The norm of all gradients of the model together, and clipping by it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/parallel/groups.h"
#include "examples/pretrain_gpt/rank_parameters.h"

namespace pretrain_gpt {

class GradientNorm {
 public:
  // Of the gradients of `parameters` on all ranks of the run. A parameter that several ranks have, and each part of one
  // that they divide, is counted once, by the lowest of them. The constructor is collective, over the store.
  GradientNorm(const ProcessGroups& groups, c10d::Store& store, std::vector<RankParameter> parameters);

  // Collective; the same to the bit on every rank. Squares are summed per parameter in double on its rank, then over
  // parameters in the order of their names with compensation, so that neither schedule nor division shows in the
  // result. NaN where a copy that is not counted is not finite, too: each rank would step by its own.
  double compute() const;

  // g *= min(1, max_norm / (norm + 1e-6)), as Megatron does; nothing where max_norm is 0.
  void clip(double norm, double max_norm) const;

 private:
  Group world_;
  std::vector<RankParameter> parameters_;
  std::map<std::size_t, std::int64_t> counted_here_;  // Index of a parameter to its place among all sorted names.
  std::int64_t size_ = 0;                             // Names of all ranks.
};

// Neumaier's sum.
double compensated_sum(const double* values, std::int64_t count);

}  // namespace pretrain_gpt
