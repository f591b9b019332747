#include "plugin/runtime/gradient_source.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

namespace dualpipe {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

class GradientSource : public Node {
 public:
  GradientSource(std::uint64_t sequence_nr, std::vector<Edge> edges, TensorList gradients)
      : Node(sequence_nr, std::move(edges)), gradients_(std::move(gradients)) {}

  std::string name() const override { return "DualPipeGradientSource"; }

 private:
  TensorList apply(TensorList&&) override { return std::move(gradients_); }

  TensorList gradients_;
};

// Nodes are held by an intrusive pointer or, before LibTorch 2.15, by a std::shared_ptr.
template <typename T, typename... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

// On the device of the gradients, so that the engine knows on which stream they were made.
at::Tensor make_token(const TensorList& gradients) {
  const auto defined =
      std::find_if(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) { return gradient.defined(); });
  return at::zeros({}, defined == gradients.end() ? at::Device(at::kCPU) : defined->device());
}

}  // namespace

NodePtr make_gradient_source(std::uint64_t sequence_nr, std::vector<Edge> edges, TensorList gradients,
                             const at::Tensor& like) {
  NodePtr source = make_node<GradientSource>(sequence_nr, std::move(edges), std::move(gradients));
  source->add_input_metadata(like);
  return source;
}

void accumulate_from(std::vector<Edge> edges, TensorList gradients) {
  if (edges.size() == 1 && gradients[0].defined()) {
    torch::autograd::Engine::get_default_engine().execute(edges, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
    return;
  }
  const at::Tensor token = make_token(gradients);
  constexpr std::uint64_t kAny = 0;  // Nothing else is ready when the only root is.
  const Edge root(make_gradient_source(kAny, std::move(edges), std::move(gradients), token), 0);
  torch::autograd::Engine::get_default_engine().execute({root}, {token}, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace dualpipe
