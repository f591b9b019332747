#include "plugin/runtime/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "plugin/runtime/name_list.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

struct Holder {
  int rank;
  std::string shape;
};

// By name, the lowest rank that holds it. Each rank gave names and shapes in turn.
std::map<std::string, Holder> owners(const std::vector<std::string>& gathered) {
  std::map<std::string, Holder> owner;
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const std::vector<std::string> given = decode_names(gathered[rank]);
    for (std::size_t i = 0; i < given.size(); i += 2) {
      const Holder holder{static_cast<int>(rank), given[i + 1]};
      const Holder& first = owner.emplace(given[i], holder).first->second;
      if (first.shape == holder.shape) continue;
      throw ScheduleError("gradient_norm", "a logical name must mean one parameter on all ranks, got \"" + given[i] +
                                               "\" as " + first.shape + " on rank " + std::to_string(first.rank) +
                                               " and as " + holder.shape + " on rank " + std::to_string(rank) +
                                               "; let logical_name() name them apart");
    }
  }
  return owner;
}

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

// A fixed order of addition, whatever the strides.
at::Tensor squared_norm(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  const at::Tensor flat = values.reshape({-1}).contiguous();
  return (flat.is_complex() ? at::view_as_real(flat).reshape({-1}) : flat).to(at::kDouble).square().sum();
}

// Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen" (1974).
double compensated_sum(const double* values, std::size_t count) {
  double sum = 0;
  double lost = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double next = sum + values[i];
    lost += std::abs(sum) >= std::abs(values[i]) ? (sum - next) + values[i] : (values[i] - next) + sum;
    sum = next;
  }
  return std::isfinite(sum) ? sum + lost : sum;
}

}  // namespace

GradientNorm::GradientNorm(std::shared_ptr<Transport> transport, const Gradients& gradients)
    : transport_(std::move(transport)) {
  std::vector<std::string> given;
  for (const StageParameter& parameter : gradients.parameters()) {
    given.push_back(parameter.name);
    given.push_back(shape_of(parameter.parameter));
  }
  const std::map<std::string, Holder> owner = owners(transport_->all_gather(encode_names(given)));
  size_ = owner.size();
  for (const StageParameter& parameter : gradients.parameters()) {
    const auto entry = owner.find(parameter.name);
    slot_.push_back(entry->second.rank == transport_->rank() ? std::distance(owner.begin(), entry) : -1);
  }
}

double GradientNorm::compute(const Gradients& gradients) {
  if (size_ == 0) return 0;
  at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(transport_->device());
  at::Tensor squares = at::zeros({static_cast<std::int64_t>(size_)}, options);
  for (std::size_t i = 0; i < slot_.size(); ++i) {
    const at::Tensor gradient = slot_[i] < 0 ? at::Tensor() : gradients.gradient(i);
    if (gradient.defined()) squares[slot_[i]].copy_(squared_norm(gradient));
  }
  transport_->all_reduce_sum(squares);
  const at::Tensor on_host = squares.cpu();
  return std::sqrt(compensated_sum(on_host.data_ptr<double>(), size_));
}

void clip_gradients(const Gradients& gradients, double norm, double max_norm) {
  if (max_norm == 0 || !std::isfinite(norm) || norm <= max_norm) return;
  at::NoGradGuard no_grad;
  const double scale = std::min(1.0, max_norm / (norm + 1e-6));
  for (std::size_t i = 0; i < gradients.parameters().size(); ++i) {
    const at::Tensor gradient = gradients.gradient(i);
    if (gradient.defined()) gradient.mul_(scale);
  }
}

}  // namespace dualpipe
