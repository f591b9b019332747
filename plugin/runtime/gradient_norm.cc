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

using Name = std::pair<std::string, std::string>;  // Logical name, shard.

// What a rank said of one of its parameters.
struct Holder {
  std::size_t rank;
  std::string shape;
  std::string cut_by;
  std::int64_t begin;
  std::int64_t end;
};

constexpr std::size_t kTexts = 6;  // Per parameter.

std::map<Name, std::vector<Holder>> decode(const std::vector<std::string>& gathered) {
  std::map<Name, std::vector<Holder>> holders;
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const std::vector<std::string> given = decode_names(gathered[rank]);
    for (std::size_t i = 0; i + kTexts <= given.size(); i += kTexts) {
      holders[{given[i], given[i + 1]}].push_back(
          {rank, given[i + 2], given[i + 3], std::stoll(given[i + 4]), std::stoll(given[i + 5])});
    }
  }
  return holders;
}

void require_one_shape(const Name& name, const std::vector<Holder>& held) {
  const Holder& first = held.front();
  for (const Holder& holder : held) {
    if (first.shape == holder.shape) continue;
    throw ScheduleError("gradient_norm", "a logical name must mean one parameter on all ranks, got \"" + name.first +
                                             "\" as " + first.shape + " on rank " + std::to_string(first.rank) +
                                             " and as " + holder.shape + " on rank " + std::to_string(holder.rank) +
                                             "; let logical_name() name them apart");
  }
}

// Who counts what of a name: the first holder all of it, or those among whom its gradient is divided their pieces.
std::vector<Holder> counted(std::vector<Holder> held) {
  const std::string cut_by = held.front().cut_by;
  if (cut_by.empty()) return {held.front()};
  std::erase_if(held, [&](const Holder& holder) { return holder.cut_by != cut_by || holder.begin == holder.end; });
  std::sort(held.begin(), held.end(), [](const Holder& a, const Holder& b) { return a.begin < b.begin; });
  return held;
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

GradientNorm::GradientNorm(std::shared_ptr<Collectives> ranks, const Gradients& gradients,
                           std::vector<GradientPart> parts)
    : ranks_(std::move(ranks)), parts_(std::move(parts)) {
  const std::vector<StageParameter>& parameters = gradients.parameters();
  check(parts_.empty() || parts_.size() == parameters.size(), "a part is given for every parameter");
  std::vector<std::string> given;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const StageParameter& parameter = parameters[i];
    const GradientPart part = parts_.empty() ? GradientPart{0, parameter.parameter.numel()} : parts_[i];
    given.insert(given.end(), {parameter.name, parameter.shard, shape_of(parameter.parameter), part.cut_by,
                               std::to_string(part.begin), std::to_string(part.end)});
  }
  const std::map<Name, std::vector<Holder>> holders = decode(ranks_->all_gather(encode_names(given)));
  std::map<Name, std::int64_t> mine;
  for (const auto& [name, held] : holders) {
    require_one_shape(name, held);
    for (const Holder& holder : counted(held)) {
      if (holder.rank == static_cast<std::size_t>(ranks_->rank())) mine[name] = slots_;
      ++slots_;
    }
  }
  size_ = holders.size();
  for (const StageParameter& parameter : parameters) {
    const auto found = mine.find({parameter.name, parameter.shard});
    slot_.push_back(found == mine.end() ? std::nullopt : std::optional(found->second));
  }
}

at::Tensor GradientNorm::own_part(const Gradients& gradients, std::size_t parameter) const {
  const at::Tensor gradient = gradients.gradient(parameter);
  if (!gradient.defined() || parts_.empty() || parts_[parameter].cut_by.empty()) return gradient;
  return gradient.reshape({-1}).slice(0, parts_[parameter].begin, parts_[parameter].end);
}

double GradientNorm::compute(const Gradients& gradients) {
  if (slots_ == 0) return 0;
  at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(ranks_->device());
  at::Tensor squares = at::zeros({slots_}, options);
  at::Tensor others = at::zeros({}, options);
  for (std::size_t i = 0; i < slot_.size(); ++i) {
    const at::Tensor gradient = own_part(gradients, i);
    if (!gradient.defined()) continue;
    const at::Tensor square = squared_norm(gradient);
    slot_[i] ? squares[*slot_[i]].copy_(square) : others.add_(square.masked_fill(square.isfinite(), 0));
  }
  squares[0].add_(others);  // Nothing, unless a copy that somebody else counts is not finite.
  ranks_->all_reduce_sum(squares);
  const at::Tensor on_host = squares.cpu();
  return std::sqrt(compensated_sum(on_host.data_ptr<double>(), on_host.numel()));
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
