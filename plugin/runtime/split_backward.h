// plugin/runtime/split_backward.h
//
// The backward of arbitrary modules in two parts, with no change to the model: I gives the gradients of a stage's
// inputs, W those of its parameters, together equal to plain backward to the bit.
//
//   on the path   a node from which an input that needs a gradient can be reached
//   frontier      a node on the path with an edge to a node that is not
//
// I asks the engine for the gradients of the inputs alone, keeping the graph, and keeps the gradients that enter each
// frontier node (after its hooks). W then cuts the frontier nodes' edges along the path and runs the engine once from
// all of them, so LibTorch's own nodes do no matrix product twice, a weight that is used twice is reached from each of
// its users, sums are taken in the order of plain backward, and accumulate hooks fire once. A gradient that a node
// computed during I though nothing asked for it is kept, and W does not compute it again: a custom Function that
// ignores which gradients are needed runs once. So does a node that put its own closure into the store. An output that
// no input reaches goes to W with its gradient; where no input needs a gradient, I is empty and W is the whole
// backward.
//
// Hooks of tensors and those before a node run once, in I or in W. Those after a frontier node run whenever it does,
// and see the gradients for the path in I and the others in W.
//
// Nodes on the path free their saved tensors as I goes, as in plain backward, the frontier excepted. After I only what
// W needs lives on, once the caller lets go of the roots.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <vector>

#include "plugin/runtime/tensor_list.h"
#include "plugin/runtime/weight_grad_store.h"

namespace dualpipe {

// Where a backward starts. Holding edges instead of the output tensors lets the outputs be freed once sent.
struct GraphRoots {
  std::vector<torch::autograd::Edge> edges;  // Gradient edges of the outputs that require grad.
  TensorList gradients;                      // One per edge; an undefined one counts as zero and is skipped.
};

// The gradient edges of those outputs that require grad, gradients left undefined, and which outputs they belong to.
GraphRoots roots_of(const TensorList& outputs, std::vector<int>* indices = nullptr);

// Plain backward: accumulates into the parameters and returns the gradient of each input (undefined where the input is
// undefined, does not require grad or is not reached). Inputs are leaves; their .grad is left untouched. Frees the
// graph.
TensorList full_backward(const GraphRoots& roots, const TensorList& inputs);

struct SplitResult {
  TensorList input_grads;             // As full_backward gives them.
  std::function<void()> weight_work;  // Runs W once; empty if there is nothing to do.
  std::size_t bytes;                  // What weight_work keeps alive, as far as it can be known: kept gradients.
};

// I. Gradients are kept, not copied: those of the roots must not be overwritten before W. `store` is where layers with
// their own closures put them (between its begin() and seal(), which are the caller's).
SplitResult input_backward(const GraphRoots& roots, const TensorList& inputs, const WeightGradStore& store);

}  // namespace dualpipe
