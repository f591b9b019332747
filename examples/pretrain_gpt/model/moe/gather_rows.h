// examples/pretrain_gpt/model/moe/gather_rows.h
//
// Rows in another order, in the same way forth and back: gradients are gathered too, never scattered, so that what is
// added up is added in a fixed order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pretrain_gpt {

// Of a permutation, int64: result[order[i]] = i.
at::Tensor inverse_of(const at::Tensor& order);

// As if each row of x stood `copies` times in a row: result[i] = x[order[i] / copies]. order: a permutation, inverse:
// its inverse. The gradient of a row is the sum of those of its copies, first copy first.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& order, const at::Tensor& inverse,
                       std::int64_t copies = 1);

}  // namespace pretrain_gpt
