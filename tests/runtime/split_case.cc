#include "tests/runtime/split_case.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <cstring>
#include <string_view>

namespace dualpipe::testing {
namespace {

thread_local std::size_t counted_products = 0;

Graph build_graph(const Build& build) {
  torch::manual_seed(17);
  Graph graph = build();
  if (graph.gradients.empty()) {
    for (const at::Tensor& output : graph.outputs) {
      const bool floating = output.defined() && output.is_floating_point();
      graph.gradients.push_back(floating ? at::randn_like(output.detach()) : at::Tensor());
    }
  }
  return graph;
}

TensorList gradients_of(const TensorList& tensors) {
  TensorList gradients;
  for (const at::Tensor& tensor : tensors) gradients.push_back(tensor.defined() ? tensor.grad() : at::Tensor());
  return gradients;
}

// As earlier micro-batches would have left them.
Build with_earlier_gradients(const Build& build) {
  return [build] {
    Graph graph = build();
    for (const at::Tensor& parameter : graph.parameters) {
      if (parameter.requires_grad()) parameter.mutable_grad() = at::randn_like(parameter.detach());
    }
    return graph;
  };
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool is_product(std::string_view name) {
  for (const std::string_view product : {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmm_"}) {
    if (name == product) return true;
  }
  return false;
}

}  // namespace

GraphRoots roots_of(const Graph& graph) {
  std::vector<int> indices;
  GraphRoots roots = dualpipe::roots_of(graph.outputs, &indices);
  for (std::size_t i = 0; i < indices.size(); ++i) roots.gradients[i] = graph.gradients.at(indices[i]);
  return roots;
}

Outcome run_plain(const Build& build) {
  const Graph graph = build_graph(build);
  TensorList outputs, gradients;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const at::Tensor& output = graph.outputs[i];
    if (!output.defined() || !output.requires_grad() || !graph.gradients[i].defined()) continue;
    outputs.push_back(output);
    gradients.push_back(graph.gradients[i]);
  }
  const ProductCounter counter;
  if (!outputs.empty()) torch::autograd::backward(outputs, gradients);
  return {gradients_of(graph.inputs), gradients_of(graph.parameters), ProductCounter::count()};
}

Outcome run_full(const Build& build) {
  const Graph graph = build_graph(build);
  const ProductCounter counter;
  TensorList input_grads = full_backward(roots_of(graph), graph.inputs);
  return {std::move(input_grads), gradients_of(graph.parameters), ProductCounter::count()};
}

SplitResult run_input_backward(const Graph& graph, WeightGradStore& store) {
  store.begin();
  SplitResult result = input_backward(roots_of(graph), graph.inputs, store);
  store.seal({0, 0});
  if (result.weight_work) store.add({0, 0}, result.weight_work, result.bytes);
  return result;
}

Outcome run_split(const Build& build) {
  WeightGradStore store;
  TensorList input_grads, parameters;
  std::size_t products = 0;
  {
    const WeightGradStore::Scope scope(store);
    const Graph graph = build_graph(build);
    parameters = graph.parameters;
    const TensorList before = gradients_of(parameters);
    const ProductCounter counter;
    input_grads = run_input_backward(graph, store).input_grads;
    products = ProductCounter::count();
    expect_equal_bits(gradients_of(parameters), before, "parameter gradient after I alone,");
  }
  const ProductCounter counter;
  store.run({0, 0});
  EXPECT_TRUE(store.empty());
  EXPECT_EQ(store.pending_bytes(), 0u);
  return {std::move(input_grads), gradients_of(parameters), products + ProductCounter::count()};
}

void expect_equal_bits(const TensorList& actual, const TensorList& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << what << " " << i << " is defined in one alone";
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(equal_bits(actual[i], expected[i])) << what << " " << i << "\ngot\n"
                                                    << actual[i] << "\nwanted\n"
                                                    << expected[i];
  }
}

void expect_exact(const Build& build) {
  for (const Build& variant : {build, with_earlier_gradients(build)}) {
    const Outcome plain = run_plain(variant);
    const Outcome full = run_full(variant);
    const Outcome split = run_split(variant);
    expect_equal_bits(full.input_grads, plain.input_grads, "full backward, gradient of input");
    expect_equal_bits(full.parameter_grads, plain.parameter_grads, "full backward, gradient of parameter");
    expect_equal_bits(split.input_grads, plain.input_grads, "split backward, gradient of input");
    expect_equal_bits(split.parameter_grads, plain.parameter_grads, "split backward, gradient of parameter");
    EXPECT_LE(split.products, plain.products);
  }
}

at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype) { return constant(shape, dtype).requires_grad_(); }
at::Tensor constant(at::IntArrayRef shape, at::ScalarType dtype) { return at::randn(shape).to(dtype); }

ProductCounter::ProductCounter() {
  counted_products = 0;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        if (is_product(call.name())) ++counted_products;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
}

ProductCounter::~ProductCounter() { at::removeCallback(handle_); }

std::size_t ProductCounter::count() { return counted_products; }

}  // namespace dualpipe::testing
