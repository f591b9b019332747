// plugin/runtime/whole_graph.h
//
// A stage's forward in one graph, made by StageModule::forward or by a model's own overlapped_forward_backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/runtime/graph_piece.h"
#include "plugin/runtime/stage_graph.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe {

// Where in the graph an output is, and what it looks like; nothing of an undefined one.
struct OutputPlace {
  std::optional<std::vector<std::int64_t>> sizes;
  at::TensorOptions options;
  torch::autograd::Edge edge;  // Invalid where the output needs no gradient.
};

class WholeGraph final : public StageGraph {
 public:
  // `hooked`: a hook may run the backward, which then needs what stands for the outputs.
  WholeGraph(GraphSite site, StageModule& module, TensorList inputs, bool hooked);

  StageOutputs forward() override;
  TensorList backward(const TensorList& gradients) override;
  TensorList backward_input(const TensorList& gradients) override;
  void backward_weight() override;

  // For a hook. What it computed is kept as if forward() had.
  StageModule& begin_micro_batch();
  void keep(const StageOutputs& outputs);
  StageModule& module() { return module_; }
  // Tensors with the outputs' graph, shapes and dtypes, without their values or storage to speak of, and the loss.
  StageOutputs stand_ins() const;

 private:
  void forget_outputs();

  StageModule& module_;
  bool hooked_;
  GraphPiece piece_;
  at::Tensor loss_;  // What stand_ins() are made of, where a hook may ask.
  std::vector<OutputPlace> places_;
};

}  // namespace dualpipe
