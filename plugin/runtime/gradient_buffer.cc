#include "plugin/runtime/gradient_buffer.h"

#include <ATen/ATen.h>

#include <sstream>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

at::TensorOptions options_of(const StageParameter& parameter, at::ScalarType dtype) {
  return parameter.parameter.options().dtype(dtype).requires_grad(false);
}

}  // namespace

at::ScalarType gradient_dtype(const StageParameter& parameter) {
  return parameter.main_grad.defined() ? parameter.main_grad.scalar_type() : parameter.parameter.scalar_type();
}

std::string describe(const StageParameter& parameter) {
  std::ostringstream text;
  text << "\"" << parameter.name << "\" (stage " << parameter.stage << ", " << parameter.parameter.sizes() << ", "
       << c10::toString(gradient_dtype(parameter)) << ")";
  return text.str();
}

void refuse_sparse(const std::string& origin, const std::vector<std::size_t>& indices, Gradients& gradients) {
  for (std::size_t index : indices) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
    throw ScheduleError(origin, "gradients must be dense, got a sparse one for \"" +
                                    gradients.parameters()[index].name + "\"; an embedding with sparse=false works");
  }
}

TensorList flat_gradients(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype) {
  TensorList parts;
  for (std::size_t index : indices) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    const StageParameter& parameter = gradients.parameters()[index];
    parts.push_back(gradient.defined() ? gradient.reshape({-1}).to(dtype)
                                       : at::zeros({parameter.parameter.numel()}, options_of(parameter, dtype)));
  }
  return parts;
}

at::Tensor gradient_flags(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype) {
  std::vector<double> flags;
  for (std::size_t index : indices) flags.push_back(gradients.step_gradient(index).defined() ? 1 : 0);
  return at::tensor(flags, at::kDouble).to(options_of(gradients.parameters()[indices.front()], dtype));
}

void restore_gradients(const std::vector<std::size_t>& indices, const at::Tensor& sums, const at::Tensor& flags,
                       Gradients& gradients) {
  const at::Tensor had = flags.to(at::kDouble).cpu();
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const StageParameter& parameter = gradients.parameters()[indices[i]];
    at::Tensor& gradient = gradients.step_gradient(indices[i]);
    const at::Tensor sum = sums.narrow(0, offset, parameter.parameter.numel()).view(parameter.parameter.sizes());
    offset += parameter.parameter.numel();
    if (gradient.defined()) {
      gradient.copy_(sum);
    } else if (had.const_data_ptr<double>()[i] > 0) {
      gradient = sum.to(gradient_dtype(parameter), /*non_blocking=*/false, /*copy=*/true);
    }
  }
}

}  // namespace dualpipe
