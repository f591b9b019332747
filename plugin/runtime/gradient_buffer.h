// plugin/runtime/gradient_buffer.h
//
// Gradients of several parameters as one tensor that a message or a collective carries: one after another, then a flag
// for each, 1 where this rank has a gradient and 0 where it has none (and zeros stand for it). After a sum a flag above
// 0 says that some rank had one.
#pragma once

#include <string>
#include <vector>

#include "plugin/runtime/gradients.h"

namespace dualpipe {

// The dtype in which a parameter's gradient is kept and exchanged.
at::ScalarType gradient_dtype(const StageParameter& parameter);

// "weight (stage 1, [2, 3], Float)"
std::string describe(const StageParameter& parameter);

// Throws ScheduleError where this step left a sparse gradient.
void refuse_sparse(const std::string& origin, const std::vector<std::size_t>& indices, Gradients& gradients);

// This step's gradients in `dtype`, each of one dimension, for at::cat(); and the flags.
TensorList flat_gradients(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype);
at::Tensor gradient_flags(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype);

// Into this step's gradients: what a flag of 0 belongs to keeps an undefined one.
void restore_gradients(const std::vector<std::size_t>& indices, const at::Tensor& sums, const at::Tensor& flags,
                       Gradients& gradients);

}  // namespace dualpipe
