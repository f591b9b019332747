#include "examples/pretrain_gpt/model/run_phases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace pretrain_gpt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::AutoGradMode;
using torch::autograd::variable_list;

// A phase at work on one micro-batch, from its forward to its backward.
struct Call : torch::CustomClassHolder {
  Call(const ModelPhase& call_phase, std::int64_t micro_batch) : phase(call_phase), state{micro_batch, {}} {}

  ModelPhase phase;
  PhaseState state;
};
using CallPointer = c10::intrusive_ptr<Call>;

constexpr const char* kCall = "call";

void keep(AutogradContext* context, const CallPointer& call) {
  context->saved_data[kCall] = at::IValue::make_capsule(call);
  context->set_materialize_grads(false);
}

Call& kept(AutogradContext* context) { return static_cast<Call&>(*context->saved_data[kCall].toCapsule()); }

template <typename Predicate>
void mark_non_differentiable(AutogradContext* context, const Tensors& outputs, Predicate carries_gradient) {
  variable_list others;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(others), std::not_fn(carries_gradient));
  context->mark_non_differentiable(others);
}

Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad()) : input);
  }
  return leaves;
}

// Leaves the gradients of leaves in their .grad.
void run_backward(const Tensors& outputs, const variable_list& gradients) {
  torch::autograd::edge_list roots;
  variable_list root_gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (gradients[i].defined() && outputs[i].requires_grad()) {
      roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
      root_gradients.push_back(gradients[i]);
    }
  }
  torch::autograd::Engine::get_default_engine().execute(roots, root_gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

// A compute phase that runs again in backward.
class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs, const CallPointer& call) {
    keep(context, call);
    context->save_for_backward(inputs.vec());
    Tensors outputs = call->phase.compute(inputs.vec(), call->state);
    mark_non_differentiable(context, outputs, [](const at::Tensor& output) { return output.is_floating_point(); });
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Call& call = kept(context);
    const Tensors leaves = leaves_of(context->get_saved_variables());
    Tensors outputs;
    {
      const AutoGradMode with_graph(true);
      outputs = call.phase.compute(leaves, call.state);
    }
    run_backward(outputs, gradients);
    variable_list input_gradients;
    for (const at::Tensor& leaf : leaves) {
      input_gradients.push_back(leaf.defined() ? leaf.grad() : leaf);
    }
    input_gradients.emplace_back();  // Of the call.
    return input_gradients;
  }
};

class Exchanged : public torch::autograd::Function<Exchanged> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs, const CallPointer& call) {
    keep(context, call);
    const AutoGradMode as_outside(true);
    const Tensors results = call->phase.exchange(inputs.vec(), call->state)->wait();
    variable_list outputs, others;
    for (const at::Tensor& result : results) {
      outputs.push_back(result.detach());
      if (!result.requires_grad()) {
        others.push_back(outputs.back());
      }
    }
    context->mark_non_differentiable(others);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Call& call = kept(context);
    variable_list input_gradients = call.phase.exchange_back(gradients, call.state)->wait();
    input_gradients.emplace_back();  // Of the call.
    return input_gradients;
  }
};

bool needs_graph(const Tensors& inputs) {
  return torch::autograd::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) {
           return x.defined() && x.requires_grad();
         });
}

// The outputs start with the inputs, graph and all.
Tensors exchange_one_way(const Tensors& inputs, Call& call) {
  Tensors outputs = call.phase.exchange(inputs, call.state)->wait();
  std::copy(inputs.begin(), inputs.end(), outputs.begin());
  return outputs;
}

Tensors run_phase(const ModelPhase& phase, const Tensors& inputs, std::int64_t micro_batch) {
  const auto call = c10::make_intrusive<Call>(phase, micro_batch);
  const bool graph = needs_graph(inputs);
  if (phase.compute) {
    return graph && phase.recompute ? Recomputed::apply(at::TensorList(inputs), call)
                                    : phase.compute(inputs, call->state);
  }
  if (!phase.exchange_back) {
    return exchange_one_way(inputs, *call);
  }
  return graph ? Exchanged::apply(at::TensorList(inputs), call) : phase.exchange(inputs, call->state)->wait();
}

}  // namespace

Tensors run_phases(const std::vector<ModelPhase>& phases, Tensors inputs, std::int64_t micro_batch) {
  for (const ModelPhase& phase : phases) {
    inputs = run_phase(phase, inputs, micro_batch);
  }
  return inputs;
}

}  // namespace pretrain_gpt
