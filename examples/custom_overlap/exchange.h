// examples/custom_overlap/exchange.h
//
// Rows that move over the link, for autograd and for phases. Where they go to does not matter here: they are rotated.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "examples/custom_overlap/link.h"
#include "plugin/runtime/phase.h"

namespace custom_overlap {

// What dispatch does to the rows, and combine undoes.
enum class Way { kDispatch, kCombine };

at::Tensor moved(const at::Tensor& rows, Way way);
constexpr Way opposite(Way way) { return way == Way::kDispatch ? Way::kCombine : Way::kDispatch; }

// Differentiable. The exchange was posted before; its result is awaited here. The way back posts an exchange of its
// own, does what link->meanwhile says, and waits.
at::Tensor arrive(const at::Tensor& rows, Way way, const LinkPtr& link, Link::Arrival arrival);
// Posts and waits.
at::Tensor exchange(const at::Tensor& rows, Way way, const LinkPtr& link);

// {kept, rows} -> {kept, moved rows}, as a phase.
dualpipe::Phase exchange_phase(const char* name, Way way, const LinkPtr& link);

}  // namespace custom_overlap
