// examples/pretrain_gpt/model/dropout.h
//
// Dropout whose masks depend on what is dropped alone: not on the schedule, nor on whether activations are computed a
// second time, nor on what else drew random numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

// One run of a micro-batch through a model.
struct ForwardPass {
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;  // Of the step, over all data-parallel ranks.
  bool is_training = true;       // False: nothing is dropped.
  std::int64_t samples = 0;      // Of the micro-batch, its first ones: those that count.
};

// The dropout of one layer.
class Dropout {
 public:
  Dropout(const Config& config, std::int64_t layer) : seed_(config.seed), layer_(layer) {}

  // x / (1 - p), or 0 with probability p (below 1). `position` tells the tensors of a layer apart, `part` the parts of
  // one that is divided over ranks: 0 where all ranks hold the same.
  at::Tensor apply(const at::Tensor& x, double p, const ForwardPass& pass, std::string_view position, int part) const;

 private:
  std::int64_t seed_, layer_;
};

}  // namespace pretrain_gpt
