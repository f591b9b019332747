#include "tests/bench/executor/sleeping_stage.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>

#include "plugin/runtime/split_backward.h"

namespace dualpipe::bench {
namespace {

// Bodies within do not sleep on their own.
class Awake {
 public:
  explicit Awake(Sleeper& sleeper) : sleeper_(sleeper) { sleeper_.awake = true; }
  ~Awake() { sleeper_.awake = false; }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;

 private:
  Sleeper& sleeper_;
};

}  // namespace

SleepingStage::SleepingStage(Sleeper& sleeper)
    : sleeper_(sleeper), weight_(register_parameter("weight", at::zeros({}))) {}

TensorList SleepingStage::forward(const TensorList& inputs) {
  return {sleeping_layer(only_tensor(inputs), weight_, sleeper_)};
}

OverlapHook SleepingStage::overlapped_forward_backward() {
  return [&sleeper = sleeper_](StageModule& module0, const TensorList& inputs0, const Criterion* criterion0,
                               const TensorList& labels0, StageModule&, const at::Tensor& loss1,
                               const TensorList& outputs1, const TensorList& output_grads1) -> OverlapResult {
    const Deadline deadline{sleeper.pace.overlapped};
    OverlapResult result;
    {
      const Awake awake(sleeper);
      result.first = module0.forward(inputs0);
      if (criterion0) result.second = criterion0->loss(result.first, labels0);
      GraphRoots roots = roots_of(loss1.defined() ? TensorList{loss1} : outputs1);
      roots.gradients = loss1.defined() ? TensorList{at::ones_like(loss1)} : output_grads1;
      torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/true);
    }
    sleeper.sleep(deadline, sleeper.pace.overlapped);
    return result;
  };
}

}  // namespace dualpipe::bench
