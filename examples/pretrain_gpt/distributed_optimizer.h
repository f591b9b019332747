// examples/pretrain_gpt/distributed_optimizer.h
//
// AdamW with float32 master weights for parameters of lower precision, and with its state divided over the ranks that
// hold equal copies of them (ZeRO-1).
//
// The parameters of a part are laid end to end and cut into one slice per rank of its group. A rank keeps master
// weights and moments of its slice alone, steps it, and gathers everybody's new values, rounded to the parameters'
// dtype. Each element is stepped by the arithmetic of torch::optim::AdamW on the master's dtype, on one rank, so the
// result does not depend on the group's size, and all its ranks get the same bits.
//
// Bytes per element and rank, with n ranks in the group: 8 / n for the moments (float64: 16 / n) and, where the group
// is of several or the parameters are bfloat16, 4 / n for the masters (float64: 8 / n).
#pragma once

#include <torch/optim/adamw.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <vector>

#include "examples/pretrain_gpt/optimizer_state.h"

namespace pretrain_gpt {

class DistributedOptimizer : public torch::optim::Optimizer {
 public:
  // All of one dtype, with one group and one set of options.
  struct Part {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> main_gradients;        // As many; an undefined one means `.grad`.
    c10::intrusive_ptr<c10d::ProcessGroup> group;  // Null: this rank alone.
    torch::optim::AdamWOptions options;
  };

  // All ranks of a group list the same parameters in the same order, and parts in one order. Each part is a parameter
  // group of the optimizer, whose options (the learning rate) hold for its next step.
  explicit DistributedOptimizer(std::vector<Part> parts);

  // Collective over the groups. Gradients are the same on all ranks of a group; an undefined one counts as zeros.
  // `closure` must be empty.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;  // This rank's slices.
  void load(torch::serialize::InputArchive& archive) override;

  // Of this rank's slices, in the order of parts and parameters (examples/pretrain_gpt/optimizer_state.h).
  std::vector<ParameterState> parameter_states();

  std::int64_t state_bytes() const;  // Of this rank: master weights and moments.

 private:
  // A part, cut.
  struct Slice {
    Part part;
    std::int64_t begin = 0, size = 0;  // Of the parameters laid end to end; the last slices may reach past the end.
    at::Tensor master;                 // [size]
    std::unique_ptr<torch::optim::AdamW> adamw;
  };

  static Slice cut(Part part);
  static void step(Slice& slice);
  static void gather(const Slice& slice);

  std::vector<Slice> slices_;
};

}  // namespace pretrain_gpt
