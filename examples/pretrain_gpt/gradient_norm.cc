#include "examples/pretrain_gpt/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/failures/finite_watch.h"

namespace pretrain_gpt {
namespace {

// The name of what a rank holds: a parameter, or its part of one.
std::string part_name(const ProcessGroups& groups, const RankParameter& parameter) {
  const std::string part = groups.part_of(parameter.layout);
  return part.empty() ? parameter.name : parameter.name + "@" + part;
}

// Every name with the lowest rank that has it.
std::map<std::string, int> owners(const std::vector<std::string>& names_by_rank) {
  std::map<std::string, int> owner;
  for (std::size_t rank = 0; rank < names_by_rank.size(); ++rank) {
    std::istringstream names(names_by_rank[rank]);
    for (std::string name; std::getline(names, name);) {
      owner.emplace(name, static_cast<int>(rank));
    }
  }
  return owner;
}

double sum_of_squares(const at::Tensor& gradient) {
  return gradient.defined() ? gradient.to(at::kDouble).square().sum().item<double>() : 0.0;
}

}  // namespace

GradientNorm::GradientNorm(const ProcessGroups& groups, c10d::Store& store, std::vector<RankParameter> parameters)
    : world_(groups.world()), parameters_(std::move(parameters)) {
  std::map<std::string, std::size_t> index_of;
  std::string names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string name = part_name(groups, parameters_[i]);
    index_of.emplace(name, i);
    names += name + '\n';
  }
  const auto names_by_rank = gather_texts(store, "gradient_norm", groups.rank(), groups.world_size(), names);
  for (const auto& [name, rank] : owners(names_by_rank)) {
    if (rank == groups.rank()) {
      counted_here_.emplace(index_of.at(name), size_);
    }
    ++size_;
  }
}

double GradientNorm::compute() const {
  const at::Tensor sums = at::zeros({size_ + 1}, at::kDouble);
  double* const places = sums.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto counted = counted_here_.find(i);
    if (counted != counted_here_.end()) {
      places[counted->second] = sum_of_squares(parameters_[i].gradient());
    } else if (!is_finite(parameters_[i].gradient())) {
      places[size_] += 1;
    }
  }
  sum_over(world_, sums);
  const double norm = std::sqrt(compensated_sum(places, size_));
  return std::isfinite(norm) && places[size_] > 0 ? std::numeric_limits<double>::quiet_NaN() : norm;
}

void GradientNorm::clip(double norm, double max_norm) const {
  const double factor = max_norm / (norm + 1e-6);
  if (max_norm == 0 || factor >= 1) {
    return;
  }
  for (const RankParameter& parameter : parameters_) {
    if (const at::Tensor gradient = parameter.gradient(); gradient.defined()) {
      gradient.mul_(factor);
    }
  }
}

double compensated_sum(const double* values, std::int64_t count) {
  double sum = 0, lost = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double next = sum + values[i];
    lost += std::abs(sum) >= std::abs(values[i]) ? (sum - next) + values[i] : (values[i] - next) + sum;
    sum = next;
  }
  return std::isfinite(sum) ? sum + lost : sum;
}

}  // namespace pretrain_gpt
