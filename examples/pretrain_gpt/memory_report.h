// examples/pretrain_gpt/memory_report.h
//
// Where a rank's memory goes, measured beside the formulas of examples/pretrain_gpt/memory_formula.h.
//
// Peak activations are what a step holds at its worst above what it leaves behind. The formula for them is the
// micro-batches of each chunk that the schedule keeps at once, times what a forward of one of them keeps; a pass needs
// more than that for a moment.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "examples/pretrain_gpt/forward_backward.h"
#include "examples/pretrain_gpt/memory_formula.h"
#include "examples/pretrain_gpt/tensor_memory.h"

namespace pretrain_gpt {

class MemoryReport {
 public:
  // Collective: runs a forward of a micro-batch through each chunk, to see what it keeps. All outlive the report.
  MemoryReport(const TrainContext& context, ForwardBackward& schedule, TensorMemory& memory);

  void begin_step() { memory_.begin_peak(); }
  void end_step();                                                        // After the backward of all micro-batches.
  std::int64_t activations_of_step() const { return step_activations_; }  // At the worst moment of the last step.

  // After a step, as measured.
  StateBytes state(const torch::optim::Optimizer& optimizer) const;
  // What this rank should hold: formulas for its state, and for the micro-batches that the schedule keeps, where it
  // knows how many.
  std::int64_t expected_bytes() const;

  // After a step, a line: "rank 0: parameters 1024 B (formula 1024), gradients ..."
  std::string line(const torch::optim::Optimizer& optimizer) const;

 private:
  std::int64_t kept_by_forward(GptChunk& chunk);
  std::string activations() const;
  std::int64_t kept_activations() const;
  StateBytes formula() const;

  const TrainContext& context_;
  ForwardBackward& schedule_;
  TensorMemory& memory_;
  std::vector<std::int64_t> kept_;  // By chunk.
  std::int64_t step_activations_ = 0, peak_activations_ = 0;
};

}  // namespace pretrain_gpt
