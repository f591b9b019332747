// plugin/runtime/gradient_source.h
//
// A node that gives gradients which are there already to edges of a graph: where an engine run starts that may be given
// undefined gradients (the engine's own roots may not), and the stand-in for a node whose backward has run.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/runtime/backward_path.h"
#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

// Has one input, of the shape of `like`, whose value it ignores; gives its gradients once. The engine runs ready nodes
// by descending `sequence_nr`: with that of the node it stands for, gradients are summed in the order of plain
// backward.
NodePtr make_gradient_source(std::uint64_t sequence_nr, std::vector<torch::autograd::Edge> edges, TensorList gradients,
                             const at::Tensor& like);

// Runs the engine from these edges into the leaves that they reach, accumulating there, and frees the graph.
void accumulate_from(std::vector<torch::autograd::Edge> edges, TensorList gradients);

}  // namespace dualpipe
