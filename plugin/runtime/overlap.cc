#include "plugin/runtime/overlap.h"

#include <span>
#include <utility>

#include "plugin/runtime/phased_graph.h"
#include "plugin/runtime/whole_graph.h"

namespace dualpipe {
namespace {

PhasedGraph& forward_of(PairIo& pair) { return dynamic_cast<PhasedGraph&>(pair.graph0()); }
PhasedGraph& backward_of(PairIo& pair) { return dynamic_cast<PhasedGraph&>(pair.graph1()); }

void run(PairIo& pair, const PairStep& step) {
  switch (step.kind) {
    case PairStepKind::kTakeInputs:
      pair.graph0();
      break;
    case PairStepKind::kTakeGradients:
      backward_of(pair).start_backward(pair.gradients1());
      break;
    case PairStepKind::kSendOutputs:
      pair.send_outputs(forward_of(pair).take_outputs());
      break;
    case PairStepKind::kSendGradients:
      pair.send_gradients(backward_of(pair).take_input_gradients());
      break;
    default:
      (step.part == PhasePart::kForward ? forward_of(pair) : backward_of(pair)).step(step);
  }
}

void run(PairIo& pair, std::span<const PairStep> steps) {
  for (const PairStep& step : steps) run(pair, step);
}

}  // namespace

void run_by_hook(PairIo& pair, const OverlapHook& hook) {
  auto& graph1 = dynamic_cast<WholeGraph&>(pair.graph1());
  auto& graph0 = dynamic_cast<WholeGraph&>(pair.graph0());
  const TensorList inputs1 = graph1.inputs();
  TensorList gradients1 = pair.gradients1();
  const StageOutputs outputs1 = graph1.stand_ins();
  at::Tensor loss1 = outputs1.loss;
  if (loss1.defined()) loss1 = loss1 * std::exchange(gradients1, {}).at(0);
  auto [outputs0, loss0] = hook(graph0.begin_micro_batch(), graph0.inputs(), pair.criterion0(), pair.labels0(),
                                graph1.module(), loss1, outputs1.tensors, gradients1);
  pair.send_outputs({outputs0, loss0});
  TensorList input_grads;
  for (const at::Tensor& input : inputs1) input_grads.push_back(input.defined() ? input.grad() : at::Tensor());
  pair.send_gradients(std::move(input_grads));
  graph0.keep({std::move(outputs0), std::move(loss0)});
}

void run_by_phases(PairIo& pair, const PairProgram& program) {
  const std::span<const PairStep> opening = opening_of(program);
  run(pair, opening);
  pair.close_previous();
  const std::size_t rest = program.steps.size() - opening.size() - closing_of(program).size();
  run(pair, std::span(program.steps).subspan(opening.size(), rest));
}

void close_by_phases(PairIo& pair, const PairProgram& program) { run(pair, closing_of(program)); }

}  // namespace dualpipe
