#include "tests/runtime/transformer_layer.h"

#include <ATen/ATen.h>

#include <cmath>

namespace dualpipe {
namespace {

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) { return at::layer_norm(x, {x.size(-1)}, weight); }

}  // namespace

TransformerLayer make_transformer_layer(int hidden, int heads, at::ScalarType dtype) {
  const auto weight = [=](std::int64_t rows, std::int64_t columns) {
    return (at::randn({rows, columns}, at::TensorOptions().dtype(dtype)) / std::sqrt(columns)).requires_grad_();
  };
  const auto ones = [=] { return at::ones({hidden}, at::TensorOptions().dtype(dtype)).requires_grad_(); };
  return {heads,
          ones(),
          weight(3 * hidden, hidden),
          weight(hidden, hidden),
          ones(),
          weight(4 * hidden, hidden),
          weight(hidden, 4 * hidden)};
}

at::Tensor attend(const TransformerLayer& layer, const at::Tensor& x) {
  const std::int64_t tokens = x.size(0);
  const std::int64_t width = x.size(1) / layer.heads;
  const at::Tensor qkv =
      at::linear(norm(x, layer.attention_norm), layer.qkv).view({tokens, 3, layer.heads, width}).permute({1, 2, 0, 3});
  const at::Tensor future = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(qkv[0], qkv[1].transpose(1, 2)) / std::sqrt(static_cast<double>(width));
  const at::Tensor mixed = at::matmul(at::softmax(scores.masked_fill(future, -INFINITY), -1), qkv[2]);
  return x + at::linear(mixed.transpose(0, 1).reshape(x.sizes()), layer.out);
}

at::Tensor feed_forward(const TransformerLayer& layer, const at::Tensor& x) {
  return x + at::linear(at::gelu(at::linear(norm(x, layer.mlp_norm), layer.up)), layer.down);
}

}  // namespace dualpipe
