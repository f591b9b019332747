// plugin/runtime/whole_graph.h
//
// A stage's forward in one graph, made by StageModule::forward or by a model's own overlapped_forward_backward.
#pragma once

#include "plugin/runtime/graph_piece.h"
#include "plugin/runtime/stage_graph.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe {

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
  // The outputs' graph, shapes and dtypes without their values, and the loss.
  const StageOutputs& stand_ins() const { return stand_ins_; }

 private:
  StageModule& module_;
  bool hooked_;
  GraphPiece piece_;
  StageOutputs stand_ins_;
};

}  // namespace dualpipe
