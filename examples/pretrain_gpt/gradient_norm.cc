#include "examples/pretrain_gpt/gradient_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cmath>
#include <sstream>
#include <vector>

#include "examples/pretrain_gpt/distributed.h"

namespace pretrain_gpt {
namespace {

std::string joined_names(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += name + '\n';
  }
  return text;
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

GradientNorm::GradientNorm(c10::intrusive_ptr<c10d::ProcessGroup> group, c10d::Store& store, NamedTensors parameters)
    : group_(std::move(group)), parameters_(std::move(parameters)) {
  const auto names =
      gather_texts(store, "gradient_norm", group_->getRank(), group_->getSize(), joined_names(parameters_));
  for (const auto& [name, rank] : owners(names)) {
    if (rank == group_->getRank()) {
      counted_here_.emplace(name, size_);
    }
    ++size_;
  }
}

double GradientNorm::compute() const {
  std::vector<at::Tensor> squares{at::zeros({size_}, at::kDouble)};
  double* const square = squares[0].mutable_data_ptr<double>();
  for (const auto& [name, place] : counted_here_) {
    square[place] = sum_of_squares(parameters_.at(name).grad());
  }
  if (group_->getSize() > 1) {
    group_->allreduce(squares)->wait();
  }
  double sum = 0;
  for (std::int64_t place = 0; place < size_; ++place) {
    sum += square[place];
  }
  return std::sqrt(sum);
}

void GradientNorm::clip(double norm, double max_norm) const {
  const double factor = max_norm / (norm + 1e-6);
  if (max_norm == 0 || factor >= 1) {
    return;
  }
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.grad().defined()) {
      parameter.grad().mul_(factor);
    }
  }
}

}  // namespace pretrain_gpt
