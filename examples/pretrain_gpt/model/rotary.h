// examples/pretrain_gpt/model/rotary.h
//
// Rotary position embeddings (Su et al., 2021): the two halves of a head's features are rotated as pairs, by an angle
// of position * base^(-2i/head_size).
#pragma once

#include <ATen/core/Tensor.h>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

class Rotary {
 public:
  explicit Rotary(const Config& config);

  // x: [batch, heads, sequence, head_size], sequence at most seq_length.
  at::Tensor apply(const at::Tensor& x) const;

 private:
  at::Tensor cos_, sin_;  // [seq_length, head_size / 2]
};

}  // namespace pretrain_gpt
