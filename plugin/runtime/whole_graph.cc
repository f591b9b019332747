#include "plugin/runtime/whole_graph.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace dualpipe {
namespace {

// A tensor of the same shape and dtype in the same place of the graph, without storage to speak of.
at::Tensor stand_in_for(const at::Tensor& output) {
  if (!output.defined()) return {};
  at::Tensor tensor = at::zeros({}, output.options().requires_grad(false)).expand(output.sizes());
  if (output.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::impl::gradient_edge(output));
  }
  return tensor;
}

}  // namespace

WholeGraph::WholeGraph(GraphSite site, StageModule& module, TensorList inputs, bool hooked)
    : StageGraph(std::move(site), std::move(inputs)), module_(module), hooked_(hooked) {}

StageModule& WholeGraph::begin_micro_batch() {
  module_.begin_micro_batch(site_.micro_batch);
  return module_;
}

StageOutputs WholeGraph::forward() {
  WeightGradStore::Scope scope(site_.store);
  StageOutputs outputs;
  outputs.tensors = begin_micro_batch().forward(inputs_);
  if (site_.loss) outputs.loss = site_.loss(outputs.tensors);
  keep(outputs);
  return outputs;
}

void WholeGraph::keep(const StageOutputs& outputs) {
  piece_.begin(inputs_);
  piece_.keep(outputs);
  if (!hooked_) return;
  stand_ins_.loss = outputs.loss;
  for (const at::Tensor& output : outputs.tensors) stand_ins_.tensors.push_back(stand_in_for(output));
}

TensorList WholeGraph::backward(const TensorList& gradients) {
  stand_ins_ = {};
  inputs_.clear();
  return piece_.backward(gradients);
}

TensorList WholeGraph::backward_input(const TensorList& gradients) {
  stand_ins_ = {};
  inputs_.clear();
  return piece_.backward_input(gradients, site_, site_.key());
}

void WholeGraph::backward_weight() { site_.store.run(site_.key()); }

}  // namespace dualpipe
