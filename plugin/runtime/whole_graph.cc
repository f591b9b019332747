#include "plugin/runtime/whole_graph.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace dualpipe {
namespace {

OutputPlace place_of(const at::Tensor& output) {
  if (!output.defined()) return {};
  OutputPlace place{output.sizes().vec(), output.options().requires_grad(false), {}};
  if (output.requires_grad()) place.edge = torch::autograd::impl::gradient_edge(output);
  return place;
}

at::Tensor stand_in_at(const OutputPlace& place) {
  if (!place.sizes) return {};
  at::Tensor tensor = at::empty({}, place.options).expand(*place.sizes);
  if (place.edge.is_valid()) torch::autograd::impl::set_gradient_edge(tensor, place.edge);
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
  loss_ = outputs.loss;
  places_.clear();
  for (const at::Tensor& output : outputs.tensors) places_.push_back(place_of(output));
}

StageOutputs WholeGraph::stand_ins() const {
  StageOutputs outputs{{}, loss_};
  for (const OutputPlace& place : places_) outputs.tensors.push_back(stand_in_at(place));
  return outputs;
}

void WholeGraph::forget_outputs() {
  loss_.reset();
  places_.clear();
}

TensorList WholeGraph::backward(const TensorList& gradients) {
  forget_outputs();
  inputs_.clear();
  return piece_.backward(gradients);
}

TensorList WholeGraph::backward_input(const TensorList& gradients) {
  forget_outputs();
  inputs_.clear();
  return piece_.backward_input(gradients, site_, site_.key());
}

void WholeGraph::backward_weight() { site_.store.run(site_.key()); }

}  // namespace dualpipe
