#include "plugin/runtime/phased_graph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr char letter_of(PhasePart part) {
  return part == PhasePart::kForward ? 'F' : part == PhasePart::kInput ? 'I' : 'W';
}

}  // namespace

// A phase, or what is done of it, as profilers see it: "dualpipe::3F5 0.attention".
class PhasedGraph::Recorded {
 public:
  Recorded(const PhasedGraph& graph, char letter, int phase, const char* what = "")
      : recorder_(graph.site_.recorder), guard_(at::RecordScope::USER_SCOPE), start_(recorder_.seconds()) {
    if (!guard_.isActive()) return;
    guard_.before(fmt::format("dualpipe::{}{}", graph.name_of(letter, phase), what));
  }
  double start() const { return start_; }

 private:
  const StepRecorder& recorder_;
  at::RecordFunction guard_;
  double start_;
};

PhasedGraph::PhasedGraph(GraphSite site, const std::vector<Phase>& phases, TensorList inputs)
    : StageGraph(std::move(site), std::move(inputs)), phases_(phases), states_(phases.size()), values_(inputs_) {
  for (State& state : states_) state.context.micro_batch = site_.micro_batch;
}

std::string PhasedGraph::name_of(char letter, int phase) const {
  return fmt::format("{}{}{} {}", site_.stage, letter, site_.micro_batch, phases_[phase].spec.name);
}

void PhasedGraph::note(PhasePart part, char letter, int phase, double start) {
  site_.recorder.add(PhaseSpan{site_.stage, site_.micro_batch, part, phase, false, start, site_.recorder.seconds(), 0,
                               name_of(letter, phase)});
}

std::string PhasedGraph::origin(int phase) const {
  return fmt::format("stage {}, phase \"{}\"", site_.stage, phases_[phase].spec.name);
}

void PhasedGraph::require_declared(int phase, const char* verb, const std::optional<TensorForms>& declared,
                                   const TensorList& tensors) const {
  if (!declared || agree(*declared, forms_of(tensors))) return;
  throw ScheduleError(origin(phase), fmt::format("must {} what it declares, {}, got {}", verb, to_string(*declared),
                                                 to_string(forms_of(tensors))));
}

// --- a micro-batch alone

StageOutputs PhasedGraph::forward() {
  const int count = static_cast<int>(phases_.size());
  for (int phase = 0; phase < count; ++phase) {
    is_compute(phase) ? run(PhasePart::kForward, phase) : exchange(PhasePart::kForward, phase);
  }
  return take_outputs();
}

bool PhasedGraph::is_followed_by_exchange(int phase) const {
  do --phase;
  while (phase >= 0 && !phases_[phase].spec.has_backward);
  return phase >= 0 && !is_compute(phase);
}

// Where an exchange comes next, W is left to run behind it.
TensorList PhasedGraph::backward(const TensorList& gradients) {
  start_backward(gradients);
  std::optional<int> weight;
  for (int phase = static_cast<int>(phases_.size()) - 1; phase >= 0; --phase) {
    if (phases_[phase].exchange_back) {
      post(PhasePart::kInput, phase);
      if (weight) run(PhasePart::kWeight, *std::exchange(weight, {}));
      wait(PhasePart::kInput, phase);
    } else if (is_compute(phase) && is_followed_by_exchange(phase)) {
      run(PhasePart::kInput, phase);
      weight = phase;
    } else if (is_compute(phase)) {
      run_backward(phase);
    }
  }
  return take_input_gradients();
}

TensorList PhasedGraph::backward_input(const TensorList& gradients) {
  start_backward(gradients);
  for (int phase = static_cast<int>(phases_.size()) - 1; phase >= 0; --phase) {
    if (is_compute(phase)) run(PhasePart::kInput, phase);
    if (phases_[phase].exchange_back) exchange(PhasePart::kInput, phase);
  }
  return take_input_gradients();
}

void PhasedGraph::backward_weight() {
  for (int phase = static_cast<int>(phases_.size()) - 1; phase >= 0; --phase) {
    if (is_compute(phase)) run(PhasePart::kWeight, phase);
  }
}

void PhasedGraph::exchange(PhasePart part, int phase) {
  post(part, phase);
  wait(part, phase);
}

// --- step by step

void PhasedGraph::step(const PairStep& step) {
  switch (step.kind) {
    case PairStepKind::kRun:
      return run(step.part, step.phase);
    case PairStepKind::kPost:
      return post(step.part, step.phase);
    case PairStepKind::kWait:
      return wait(step.part, step.phase);
    default:
      check(false, "a graph runs, posts and awaits phases");
  }
}

StageOutputs PhasedGraph::take_outputs() { return {std::exchange(values_, {}), std::exchange(loss_, {})}; }

void PhasedGraph::start_backward(TensorList gradients) { gradients_ = std::move(gradients); }

TensorList PhasedGraph::take_input_gradients() {
  inputs_.clear();
  gradients_.resize(states_.front().inputs);
  return std::exchange(gradients_, {});
}

// Behind an exchange without a way back there may be more: those of what it added.
const TensorList& PhasedGraph::gradients_of(int phase) {
  check(gradients_.size() >= states_[phase].outputs, "a phase's outputs have a gradient each, defined or not");
  gradients_.resize(states_[phase].outputs);
  return gradients_;
}

// --- compute

void PhasedGraph::run(PhasePart part, int phase) {
  const Recorded recorded(*this, letter_of(part), phase);
  part == PhasePart::kForward ? run_forward(phase) : part == PhasePart::kInput ? run_input(phase) : run_weight(phase);
  note(part, letter_of(part), phase, recorded.start());
}

StageOutputs PhasedGraph::compute(int phase) {
  at::AutoGradMode grad_mode(true);
  WeightGradStore::Scope scope(site_.store);
  State& state = states_[phase];
  StageOutputs outputs{phases_[phase].compute(state.piece.leaves(), state.context), {}};
  if (is_last(phase) && site_.loss) outputs.loss = site_.loss(outputs.tensors);
  return outputs;
}

void PhasedGraph::run_forward(int phase) {
  State& state = states_[phase];
  require_declared(phase, "take", phases_[phase].takes, values_);
  state.inputs = values_.size();
  state.piece.begin(std::exchange(values_, {}));
  const StageOutputs outputs = compute(phase);
  require_declared(phase, "give", phases_[phase].gives, outputs.tensors);
  if (!phases_[phase].recompute) state.piece.keep(outputs);
  state.outputs = outputs.loss.defined() ? 1 : outputs.tensors.size();
  values_ = leaves_of(outputs.tensors);
  if (outputs.loss.defined()) loss_ = outputs.loss.detach();
}

void PhasedGraph::recompute(int phase) {
  if (!phases_[phase].recompute) return;
  State& state = states_[phase];
  const Recorded recorded(*this, 'F', phase, " again");
  const StageOutputs outputs = compute(phase);
  const std::size_t count = outputs.loss.defined() ? 1 : outputs.tensors.size();
  if (count != state.outputs) {
    throw ScheduleError(origin(phase),
                        fmt::format("computed again it must give the same {} tensors, got {}", state.outputs, count));
  }
  state.piece.keep(outputs);
  ++site_.recorder.statistics.recomputed_phases;
}

void PhasedGraph::run_backward(int phase) {
  const Recorded recorded(*this, 'B', phase);
  recompute(phase);
  gradients_ = states_[phase].piece.backward(gradients_of(phase));
  states_[phase].context.saved.reset();
  note(PhasePart::kInput, 'B', phase, recorded.start());
}

// Without inputs that need a gradient there is no I, so what it needs is computed again in W. The loss is not: a W may
// come after its step.
bool PhasedGraph::recomputes_in_weight(int phase) const {
  const TensorList& leaves = states_[phase].piece.leaves();
  return phases_[phase].recompute && !(is_last(phase) && site_.loss) &&
         std::none_of(leaves.begin(), leaves.end(),
                      [](const at::Tensor& leaf) { return leaf.defined() && leaf.requires_grad(); });
}

void PhasedGraph::leave_to_weight(int phase) {
  const auto work = [this, phase, gradients = gradients_of(phase)] {
    recompute(phase);
    states_[phase].piece.backward(gradients);
    states_[phase].context.saved.reset();
  };
  site_.store.add(site_.key(phase), work, 0);
  gradients_.assign(states_[phase].inputs, {});
}

void PhasedGraph::run_input(int phase) {
  if (recomputes_in_weight(phase)) return leave_to_weight(phase);
  recompute(phase);
  gradients_ = states_[phase].piece.backward_input(gradients_of(phase), site_, site_.key(phase));
  states_[phase].context.saved.reset();
}

void PhasedGraph::run_weight(int phase) { site_.store.run(site_.key(phase)); }

// --- exchanges

void PhasedGraph::post(PhasePart part, int phase) {
  const bool forward = part == PhasePart::kForward;
  State& state = states_[phase];
  const Recorded recorded(*this, letter_of(part), phase, " post");
  const at::NoGradGuard no_grad;
  state.posted = recorded.start();
  if (forward) {
    require_declared(phase, "take", phases_[phase].takes, values_);
    state.inputs = values_.size();
    state.under_way = phases_[phase].exchange(values_, state.context);
  } else {
    state.under_way = phases_[phase].exchange_back(gradients_of(phase), state.context);
  }
  if (!state.under_way)
    throw ScheduleError(origin(phase), "an exchange must return what it started, got a null pointer");
  (forward ? values_ : gradients_).clear();
}

void PhasedGraph::wait(PhasePart part, int phase) {
  State& state = states_[phase];
  check(state.under_way != nullptr, "an exchange is posted before it is awaited");
  const Recorded recorded(*this, letter_of(part), phase, " wait");
  const at::NoGradGuard no_grad;
  const TensorList result = state.under_way->wait();
  state.under_way.reset();
  const double end = site_.recorder.seconds();
  site_.recorder.add(PhaseSpan{site_.stage, site_.micro_batch, part, phase, true, state.posted, end,
                               end - recorded.start(), name_of(letter_of(part), phase)});
  take_result(part, phase, result);
}

void PhasedGraph::take_result(PhasePart part, int phase, const TensorList& result) {
  State& state = states_[phase];
  if (part == PhasePart::kForward) {
    if (!phases_[phase].exchange_back && result.size() < state.inputs) {
      throw ScheduleError(origin(phase), fmt::format("the outputs of an exchange without a way back start with its {} "
                                                     "inputs, got {} tensors",
                                                     state.inputs, result.size()));
    }
    require_declared(phase, "give", phases_[phase].gives, result);
    state.outputs = result.size();
    values_ = leaves_of(result);
    if (!phases_[phase].exchange_back) state.context.saved.reset();
    return;
  }
  if (result.size() != state.inputs) {
    throw ScheduleError(origin(phase), fmt::format("the way back must give a gradient for each of {} inputs, got {}",
                                                   state.inputs, result.size()));
  }
  gradients_ = result;
  state.context.saved.reset();
}

}  // namespace dualpipe
