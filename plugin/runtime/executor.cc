#include "plugin/runtime/executor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>

#include "plugin/runtime/phased_graph.h"
#include "plugin/runtime/whole_graph.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

TensorList detached(const TensorList& tensors) {
  TensorList plain;
  for (const at::Tensor& tensor : tensors) plain.push_back(tensor.defined() ? tensor.detach() : tensor);
  return plain;
}

bool any_requires_grad(const TensorList& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

template <typename Key>
TensorList take(std::map<Key, TensorList>& handed_over, const Key& key) {
  auto taken = handed_over.extract(key);
  check(!taken.empty(), "what a stage of this rank hands over is there before the next one runs");
  return std::move(taken.mapped());
}

}  // namespace

Executor::Executor(int rank, Placement placement, const Stages& stages, OverlapPlan overlap,
                   std::shared_ptr<Mailbox> mailbox, Gradients& gradients, GradientReduction& reduction,
                   std::shared_ptr<RingLog> log)
    : rank_(rank),
      placement_(std::move(placement)),
      modules_(stages.begin(), stages.end()),
      overlap_(std::move(overlap)),
      mailbox_(std::move(mailbox)),
      gradients_(gradients),
      reduction_(reduction),
      log_(std::move(log)) {}

Executor::~Executor() = default;

std::string Executor::current_action() const { return has_current_ ? to_string(current_) : "the start of a step"; }

std::optional<NonFiniteSighting> Executor::first_non_finite(int rank) const {
  return finite_ ? finite_->first(rank) : std::nullopt;
}

void Executor::look(const Op& op, Crossing crossing, const TensorList& tensors) {
  if (finite_ && step_.training) finite_->look(op.stage, op.micro_batch, crossing, tensors);
}

// Waiting ahead of an action is no part of it; what a pair waits for behind its start is counted.
void Executor::mark_ready(double asked) {
  const double now = recorder_.seconds();
  if (started_ < 0) {
    started_ = now;
  } else {
    waited_ += now - asked;
  }
}

StepOutputs Executor::run(const Row& row, StepInputs inputs) {
  step_ = std::move(inputs);
  recorder_.begin();
  reduced_.clear();
  if (finite_ && step_.training) finite_->begin_step();
  const std::size_t messages = mailbox_->messages_sent();
  const std::size_t bytes = mailbox_->bytes_sent();
  mailbox_->set_training(step_.training);
  at::AutoGradMode grad_mode(step_.training);
  run_row(row);
  check(mailbox_->idle() && live_.empty() == store_.empty() && outbox_.empty() && handover_.empty() &&
            handover_back_.empty(),
        "a step leaves no message and no activation behind");
  recorder_.statistics.messages_sent = mailbox_->messages_sent() - messages;
  recorder_.statistics.bytes_sent = mailbox_->bytes_sent() - bytes;
  has_current_ = false;
  step_ = {};
  return std::move(results_);
}

void Executor::run_deferred(const Row& row) {
  run_row(row);
  has_current_ = false;
}

void Executor::run_row(const Row& row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    behind_ = std::span(row).subspan(i + 1);
    run_action(row[i]);
  }
}

void Executor::run_action(const Action& action) {
  current_ = action;
  has_current_ = true;
  if (!is_compute(action.op.kind)) return run_op(action.op);
  const RingScope logged(*log_, RingKind::kCompute, to_string(action));
  at::RecordFunction guard(at::RecordScope::USER_SCOPE);
  if (guard.isActive()) guard.before("dualpipe::" + to_string(action));
  started_ = -1;
  waited_ = 0;
  run_compute(action);
  recorder_.add(Span{action, started_, recorder_.seconds(), waited_});
}

void Executor::run_compute(const Action& action) {
  if (action.is_overlap()) return run_pair(action);
  switch (action.op.kind) {
    case Kind::kForward:
      return forward(action.op);
    case Kind::kBackward:
      return backward(action.op);
    case Kind::kBackwardInput:
      return backward_input(action.op);
    default:
      return backward_weight(action.op);
  }
}

void Executor::run_op(const Op& op) {
  if (is_recv(op.kind)) return mailbox_->post(op);
  if (is_wait_send(op.kind)) return mailbox_->settle(op);
  if (is_send(op.kind)) {
    if (leaves_with_closing(op)) return open_pair_->owed.push_back(op);
    send(op);
    outbox_.erase(op);
    return;
  }
  check(op.kind == Kind::kReduceGrad, "a lowered row holds kinds that the executor knows");
  reduction_.start(op.stage, gradients_);
  reduced_.insert(op.stage);
}

// --- forward

const TensorList& Executor::labels_of(int micro_batch) const {
  static const TensorList none;
  const auto found = step_.labels.find(micro_batch);
  return found == step_.labels.end() ? none : found->second;
}

TensorList Executor::host_inputs(int micro_batch) {
  const TensorList& inputs = step_.inputs.at(micro_batch);
  return step_.training ? leaves_of(inputs) : inputs;
}

TensorList Executor::take_inputs(const Op& op) {
  if (op.stage == 0) return host_inputs(op.micro_batch);
  if (!is_local(op.stage - 1, op.micro_batch)) return mailbox_->take_forward(op.stage, op.micro_batch);
  return take(handover_, key_of(op));
}

std::unique_ptr<StageGraph> Executor::make_graph(const Op& op, TensorList inputs) {
  GraphSite site{op.stage, op.micro_batch, {}, store_, recorder_};
  if (is_last(op.stage) && step_.criterion != nullptr) {
    site.loss = [this, k = op.micro_batch](const TensorList& outputs) {
      return step_.criterion->loss(outputs, labels_of(k));
    };
  }
  const StageOffer& offer = overlap_.offers.at(op.stage);
  if (step_.training && !offer.phases.empty()) {
    return std::make_unique<PhasedGraph>(std::move(site), offer.phases, std::move(inputs));
  }
  return std::make_unique<WholeGraph>(std::move(site), *modules_.at(op.stage), std::move(inputs),
                                      step_.training && offer.hook);
}

StageGraph& Executor::begin_forward(const Op& op) {
  const Key key = key_of(op);
  if (const auto found = live_.find(key); found != live_.end()) return *found->second;
  const double asked = recorder_.seconds();
  TensorList inputs = take_inputs(op);
  mark_ready(asked);
  if (op.stage == 0 || !is_local(op.stage - 1, op.micro_batch)) look(op, Crossing::kInput, inputs);
  StageGraph& graph = *(live_[key] = make_graph(op, std::move(inputs)));
  recorder_.saw_live(live_.size());
  return graph;
}

void Executor::forward(const Op& op) { finish_forward(op, begin_forward(op).forward()); }

void Executor::finish_last_stage(const Op& op, StageOutputs outputs) {
  if (step_.criterion != nullptr) {
    if (!outputs.loss.defined() || outputs.loss.numel() != 1) {
      throw ScheduleError(
          fmt::format("criterion, micro-batch {}", op.micro_batch),
          fmt::format("must return a scalar, got {}",
                      outputs.loss.defined() ? to_string(spec_of({outputs.loss})[0]) : "an undefined tensor"));
    }
    results_.losses[op.micro_batch] = outputs.loss.detach();
    look(op, Crossing::kLoss, {outputs.loss});
  }
  if (step_.return_outputs) results_.outputs[op.micro_batch] = detached(outputs.tensors);
}

void Executor::finish_forward(const Op& op, StageOutputs outputs) {
  look(op, Crossing::kOutput, outputs.tensors);
  if (is_last(op.stage)) {
    finish_last_stage(op, std::move(outputs));
  } else if (is_local(op.stage + 1, op.micro_batch)) {
    handover_[{op.stage + 1, op.micro_batch}] = leaves_of(outputs.tensors);
  } else {
    outbox_[make_op(op.stage, Kind::kSendForward, op.micro_batch)] = {std::move(outputs.tensors), {}, false};
  }
  if (!step_.training) live_.erase(key_of(op));
}

// --- backward

TensorList Executor::take_gradients(const Op& op) {
  const double asked = recorder_.seconds();
  TensorList gradients;
  if (is_last(op.stage)) {
    gradients = {at::full_like(results_.losses.at(op.micro_batch), step_.loss_scale(op.micro_batch))};
  } else if (is_local(op.stage + 1, op.micro_batch)) {
    gradients = take(handover_back_, key_of(op));
  } else {
    gradients = mailbox_->take_backward(op.stage, op.micro_batch);
    look(op, Crossing::kOutputGradient, gradients);
  }
  mark_ready(asked);
  return gradients;
}

void Executor::pass_gradients(const Op& op, TensorList inputs, TensorList input_grads) {
  look(op, Crossing::kInputGradient, input_grads);
  if (op.stage == 0) {
    if (any_requires_grad(inputs)) results_.input_grads[op.micro_batch] = std::move(input_grads);
  } else if (is_local(op.stage - 1, op.micro_batch)) {
    handover_back_[{op.stage - 1, op.micro_batch}] = std::move(input_grads);
  } else {
    outbox_[make_op(op.stage, Kind::kSendBackward, op.micro_batch)] = {std::move(input_grads), std::move(inputs),
                                                                       false};
  }
}

void Executor::end_backward(const Op& op) {
  live_.erase(key_of(op));
  gradients_.collect(op.stage);
}

void Executor::backward(const Op& op) {
  StageGraph& graph = graph_of(op);
  TensorList inputs = graph.inputs();
  pass_gradients(op, std::move(inputs), graph.backward(take_gradients(op)));
  end_backward(op);
}

// The graph counts as live until its W is done.
void Executor::backward_input(const Op& op) {
  StageGraph& graph = graph_of(op);
  TensorList inputs = graph.inputs();
  pass_gradients(op, std::move(inputs), graph.backward_input(take_gradients(op)));
}

void Executor::backward_weight(const Op& op) {
  mark_ready(recorder_.seconds());
  graph_of(op).backward_weight();
  end_backward(op);
}

void Executor::send(const Op& op) {
  Outgoing& outgoing = outbox_.at(op);
  if (outgoing.sent) return;
  if (op.kind == Kind::kSendForward) {
    mailbox_->send_forward(op.stage, op.micro_batch, outgoing.tensors);
  } else {
    mailbox_->send_backward(op.stage, op.micro_batch, outgoing.tensors, outgoing.inputs);
  }
  outgoing = {{}, {}, true};
}

}  // namespace dualpipe
