// tests/runtime/split_case.h
//
// The slow, obvious reference for split backward: the same graph is built afresh and run by plain autograd, by
// full_backward(), and by I followed by W; every gradient has to agree to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "plugin/runtime/split_backward.h"

namespace dualpipe::testing {

// One forward of one stage.
struct Graph {
  TensorList inputs;      // Leaves or undefined.
  TensorList parameters;  // Leaves, frozen ones included.
  TensorList outputs;
  TensorList gradients;  // Per output; empty: random ones for all.
};

using Build = std::function<Graph()>;

struct Outcome {
  TensorList input_grads;
  TensorList parameter_grads;
  std::size_t products = 0;  // Matrix products of the backward.
};

// torch::autograd::backward, the reference; full_backward(); I, then W. Each over a graph of its own.
Outcome run_plain(const Build& build);
Outcome run_full(const Build& build);
Outcome run_split(const Build& build);

// Compares all three, with parameter gradients undefined beforehand and with some already there. I and W together must
// take no more matrix products than plain backward.
void expect_exact(const Build& build);
void expect_equal_bits(const TensorList& actual, const TensorList& expected, const std::string& what);

// Of the graph's outputs that require grad, with its gradients.
GraphRoots roots_of(const Graph& graph);

// I of a graph, whose weight work is then in the store under {0, 0}.
SplitResult run_input_backward(const Graph& graph, WeightGradStore& store);

// A leaf that requires grad, and one that does not.
at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);
at::Tensor constant(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);

// Counts matrix products that run on this thread during its lifetime.
class ProductCounter {
 public:
  ProductCounter();
  ~ProductCounter();
  ProductCounter(const ProductCounter&) = delete;
  ProductCounter& operator=(const ProductCounter&) = delete;

  static std::size_t count();

 private:
  std::uint64_t handle_;
};

}  // namespace dualpipe::testing
