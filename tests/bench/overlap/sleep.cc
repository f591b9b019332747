#include "tests/bench/overlap/sleep.h"

#include <ATen/ops/add.h>
#include <sys/prctl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

namespace dualpipe::bench {
namespace {

using torch::autograd::AutogradContext;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

struct SleepingLayer : torch::autograd::Function<SleepingLayer> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, double ms,
                            Overshoot* overshoot) {
    context->saved_data["ms"] = ms;
    context->saved_data["overshoot"] = reinterpret_cast<std::int64_t>(overshoot);
    const Deadline deadline{Milliseconds(ms)};
    at::Tensor result = input + weight;
    deadline.sleep(*overshoot);
    return result;
  }

  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    Tensors result(4);  // One per argument of forward().
    const Milliseconds time(context->saved_data["ms"].toDouble());
    auto& overshoot = *reinterpret_cast<Overshoot*>(context->saved_data["overshoot"].toInt());
    if (context->needs_input_grad(0)) {
      Deadline(time).sleep(overshoot);
      result[0] = grads[0];
    }
    if (context->needs_input_grad(1)) {
      const Deadline deadline(time);
      result[1] = grads[0].sum();
      deadline.sleep(overshoot);
    }
    return result;
  }
};

}  // namespace

Deadline::Deadline(Milliseconds from_now)
    : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(from_now)) {}

void Deadline::sleep(Overshoot& overshoot) const {
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  std::this_thread::sleep_until(end_);
  overshoot.add(Clock::now() - end_);
}

at::Tensor sleeping_layer(const at::Tensor& input, const at::Tensor& weight, Milliseconds time, Overshoot& overshoot) {
  return SleepingLayer::apply(input, weight, time.count(), &overshoot);
}

}  // namespace dualpipe::bench
