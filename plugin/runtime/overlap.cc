#include "plugin/runtime/overlap.h"

#include <utility>

#include "plugin/runtime/phased_graph.h"
#include "plugin/runtime/whole_graph.h"

namespace dualpipe {

void run_by_hook(PairIo& pair, const OverlapHook& hook) {
  auto& graph1 = dynamic_cast<WholeGraph&>(pair.graph1());
  auto& graph0 = dynamic_cast<WholeGraph&>(pair.graph0());
  const TensorList inputs1 = graph1.inputs();
  TensorList gradients1 = pair.gradients1();
  at::Tensor loss1 = graph1.stand_ins().loss;
  if (loss1.defined()) loss1 = loss1 * std::exchange(gradients1, {}).at(0);
  auto [outputs0, loss0] = hook(graph0.begin_micro_batch(), graph0.inputs(), pair.criterion0(), pair.labels0(),
                                graph1.module(), loss1, graph1.stand_ins().tensors, gradients1);
  graph0.keep({outputs0, loss0});
  pair.send_outputs({std::move(outputs0), std::move(loss0)});
  TensorList input_grads;
  for (const at::Tensor& input : inputs1) input_grads.push_back(input.defined() ? input.grad() : at::Tensor());
  pair.send_gradients(std::move(input_grads));
}

void run_by_phases(PairIo& pair, const PairProgram& program) {
  auto& graph1 = dynamic_cast<PhasedGraph&>(pair.graph1());
  for (const PairStep& step : program.steps) {
    switch (step.kind) {
      case PairStepKind::kTakeInputs:
        pair.graph0();
        break;
      case PairStepKind::kTakeGradients:
        graph1.start_backward(pair.gradients1());
        break;
      case PairStepKind::kSendOutputs:
        pair.send_outputs(dynamic_cast<PhasedGraph&>(pair.graph0()).take_outputs());
        break;
      case PairStepKind::kSendGradients:
        pair.send_gradients(graph1.take_input_gradients());
        break;
      default:
        (step.part == PhasePart::kForward ? dynamic_cast<PhasedGraph&>(pair.graph0()) : graph1).step(step);
    }
  }
}

}  // namespace dualpipe
