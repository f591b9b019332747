// plugin/runtime/stage_graph.h
//
// One micro-batch in one stage, from its forward to its last weight gradient: what the forward leaves for the backward,
// in one graph (plugin/runtime/whole_graph.h) or in one per phase (plugin/runtime/phased_graph.h).
//
// Used in the order forward, then backward, or backward_input and later backward_weight. What each leaves unneeded is
// freed by it. Where one throws, everything that is under way stays alive as long as the object.
#pragma once

#include <functional>
#include <utility>

#include "plugin/runtime/step_recorder.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/runtime/weight_grad_store.h"

namespace dualpipe {

// What a forward gives. The loss is as the criterion returned it, undefined but on the last stage.
struct StageOutputs {
  TensorList tensors;
  at::Tensor loss;
};

// Where a graph is, and what it works with; all of which outlives it.
struct GraphSite {
  int stage = 0;
  int micro_batch = 0;
  std::function<at::Tensor(const TensorList& outputs)> loss;  // Empty: no loss is computed here.
  WeightGradStore& store;
  StepRecorder& recorder;

  WeightGradStore::Key key(int phase = 0) const { return {stage, micro_batch, phase}; }
};

class StageGraph {
 public:
  // `inputs` are leaves.
  StageGraph(GraphSite site, TensorList inputs) : site_(std::move(site)), inputs_(std::move(inputs)) {}
  virtual ~StageGraph() = default;
  StageGraph(const StageGraph&) = delete;
  StageGraph& operator=(const StageGraph&) = delete;

  // Empty after the backward or the I.
  const TensorList& inputs() const { return inputs_; }

  // F.
  virtual StageOutputs forward() = 0;
  // B and I: from one gradient per output, or on the last stage from that of the loss alone, those of the inputs.
  virtual TensorList backward(const TensorList& gradients) = 0;
  virtual TensorList backward_input(const TensorList& gradients) = 0;
  // W, which I left in the store.
  virtual void backward_weight() = 0;

 protected:
  GraphSite site_;
  TensorList inputs_;
};

// Leaves that share the tensors' values and require grad where these do.
TensorList leaves_of(const TensorList& tensors);

}  // namespace dualpipe
