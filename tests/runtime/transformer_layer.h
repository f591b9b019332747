// tests/runtime/transformer_layer.h
//
// A transformer layer of plain operations in two halves: what the cost of a split backward is measured on.
#pragma once

#include <ATen/core/Tensor.h>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

struct TransformerLayer {
  int heads;
  at::Tensor attention_norm, qkv, out, mlp_norm, up, down;  // Leaves.

  TensorList parameters() const { return {attention_norm, qkv, out, mlp_norm, up, down}; }
};

TransformerLayer make_transformer_layer(int hidden, int heads, at::ScalarType dtype);

// [tokens, hidden] -> [tokens, hidden], causal; and the MLP, four times as wide. Each with its norm and residual.
at::Tensor attend(const TransformerLayer& layer, const at::Tensor& x);
at::Tensor feed_forward(const TransformerLayer& layer, const at::Tensor& x);

}  // namespace dualpipe
