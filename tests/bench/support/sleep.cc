#include "tests/bench/support/sleep.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <sys/prctl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

namespace dualpipe::bench {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using NodePtr = decltype(Edge::function);

// Of input (0) and weight (1). A node of its own: a custom Function would cost more than what is measured.
struct SleepingNode : Node {
  SleepingNode(torch::autograd::edge_list edges, Sleeper& sleeper) : Node(std::move(edges)), sleeper(sleeper) {}

  Tensors apply(Tensors&& grads) override {
    Tensors result(2);
    if (task_should_compute_output(0)) {
      sleeper.sleep(Deadline(sleeper.pace.backward_input), sleeper.pace.backward_input);
      result[0] = grads[0];
    }
    if (task_should_compute_output(1)) {
      const Deadline deadline(sleeper.pace.backward_weight);
      result[1] = sleeper.no_gradient;
      sleeper.sleep(deadline, sleeper.pace.backward_weight);
    }
    return result;
  }

  Sleeper& sleeper;
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

}  // namespace

nlohmann::json describe(const Overshoot& overshoot) {
  std::vector<double> sorted = overshoot.samples();
  if (sorted.empty()) return {{"sleeps", 0}};
  std::sort(sorted.begin(), sorted.end());
  return {{"sleeps", sorted.size()},
          {"median_ms", sorted.at(sorted.size() / 2)},
          {"p99_ms", sorted.at(sorted.size() * 99 / 100)},
          {"max_ms", sorted.back()}};
}

Deadline::Deadline(Milliseconds from_now)
    : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(from_now)) {}

void Deadline::sleep(Overshoot& overshoot) const {
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  std::this_thread::sleep_until(end_);
  overshoot.add(Clock::now() - end_);
}

void Sleeper::sleep(const Deadline& deadline, Milliseconds length) {
  if (!awake && !rehearses && length.count() > 0) deadline.sleep(overshoot);
}

at::Tensor sleeping_layer(const at::Tensor& input, const at::Tensor& weight, Sleeper& sleeper) {
  const Deadline deadline{sleeper.pace.forward};
  at::Tensor result;
  {
    const at::NoGradGuard no_grad;
    result = input.clone();
  }
  if (torch::autograd::compute_requires_grad(input, weight)) {
    const auto node = make_node<SleepingNode>(torch::autograd::collect_next_edges(input, weight), sleeper);
    torch::autograd::create_gradient_edge(result, node);
  }
  sleeper.sleep(deadline, sleeper.pace.forward);
  return result;
}

}  // namespace dualpipe::bench
