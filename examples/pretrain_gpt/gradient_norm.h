// examples/pretrain_gpt/gradient_norm.h
//
// The norm of all gradients of the model together, and clipping by it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <string>

namespace pretrain_gpt {

using NamedTensors = std::map<std::string, at::Tensor>;

class GradientNorm {
 public:
  // `parameters` by logical name. A name that several ranks have (a tied weight) is counted by the lowest of them. The
  // constructor is collective, over the store.
  GradientNorm(c10::intrusive_ptr<c10d::ProcessGroup> group, c10d::Store& store, NamedTensors parameters);

  // Collective; the same to the bit on every rank. Squares are summed per parameter in double on its rank, then over
  // parameters in the order of their names, so that the division into stages does not change the result's order.
  double compute() const;

  // g *= min(1, max_norm / (norm + 1e-6)), as Megatron does; nothing where max_norm is 0.
  void clip(double norm, double max_norm) const;

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  NamedTensors parameters_;
  std::map<std::string, std::int64_t> counted_here_;  // Name to its place among all sorted names.
  std::int64_t size_ = 0;                             // Names of all ranks.
};

}  // namespace pretrain_gpt
