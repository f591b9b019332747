#include "tests/support/whole_model.h"

#include <ATen/ATen.h>

namespace dualpipe {
namespace {

TensorList forward(const std::vector<std::shared_ptr<StageModule>>& stages, TensorList tensors) {
  for (const auto& stage : stages) {
    tensors = stage->forward(tensors);
  }
  return tensors;
}

TensorList detached(TensorList tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.defined() ? tensor.detach() : tensor;
  }
  return tensors;
}

}  // namespace

WholeModelResult run_whole_model(const std::vector<std::shared_ptr<StageModule>>& stages, const MicroBatches& inputs,
                                 const MicroBatches& labels, const Criterion& criterion) {
  double total_weight = 0;
  for (const TensorList& of_micro_batch : labels) {
    total_weight += criterion.weight_of(of_micro_batch);
  }
  WholeModelResult result;
  at::Tensor global_loss;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const TensorList outputs = forward(stages, inputs[k]);
    const at::Tensor loss = criterion.loss(outputs, labels.at(k));
    const double weight = criterion.weight_of(labels[k]);
    const at::Tensor part = criterion.returns_sum ? loss / total_weight : loss * (weight / total_weight);
    global_loss = global_loss.defined() ? global_loss + part : part;
    result.losses.push_back((criterion.returns_sum ? loss / weight : loss).detach());
    result.outputs.push_back(detached(outputs));
  }
  if (global_loss.requires_grad()) {
    global_loss.backward();
  }
  result.global_loss = global_loss.item<double>();
  return result;
}

}  // namespace dualpipe
