#include "plugin/runtime/executor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

// A leaf that shares the tensor's values.
at::Tensor leaf_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return tensor.detach().set_requires_grad(tensor.requires_grad());
}

TensorList leaves_of(const TensorList& tensors) {
  TensorList leaves;
  for (const at::Tensor& tensor : tensors) leaves.push_back(leaf_of(tensor));
  return leaves;
}

TensorList detached(const TensorList& tensors) {
  TensorList plain;
  for (const at::Tensor& tensor : tensors) plain.push_back(tensor.defined() ? tensor.detach() : tensor);
  return plain;
}

// A tensor of the same shape and dtype in the same place of the graph, without storage to speak of.
at::Tensor stand_in_for(const at::Tensor& output) {
  if (!output.defined()) return {};
  at::Tensor tensor = at::zeros({}, output.options().requires_grad(false)).expand(output.sizes());
  if (output.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::impl::gradient_edge(output));
  }
  return tensor;
}

bool any_requires_grad(const TensorList& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

}  // namespace

Executor::Executor(int rank, Placement placement, Stages stages, std::shared_ptr<Mailbox> mailbox, Gradients& gradients,
                   GradientReduction& reduction)
    : rank_(rank),
      placement_(std::move(placement)),
      mailbox_(std::move(mailbox)),
      gradients_(gradients),
      reduction_(reduction) {
  for (auto& [stage, stage_module] : stages) {
    if (OverlapHook hook = stage_module->overlapped_forward_backward()) hooks_.emplace(stage, std::move(hook));
    modules_.emplace(stage, std::move(stage_module));
  }
}

Executor::~Executor() = default;

std::string Executor::current_action() const { return has_current_ ? to_string(current_) : "the start of a step"; }

double Executor::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - step_began_).count();
}

void Executor::mark_started() {
  if (started_ < 0) started_ = seconds();
}

StepOutputs Executor::run(const Row& row, StepInputs inputs) {
  step_ = std::move(inputs);
  statistics_ = {};
  reduced_.clear();
  step_began_ = std::chrono::steady_clock::now();
  const std::size_t messages = mailbox_->messages_sent();
  const std::size_t bytes = mailbox_->bytes_sent();
  mailbox_->set_training(step_.training);
  at::AutoGradMode grad_mode(step_.training);
  for (const Action& action : row) run_action(action);
  check(mailbox_->idle() && live_.empty() == store_.empty() && outbox_.empty() && handover_.empty(),
        "a step leaves no message and no activation behind");
  statistics_.messages_sent = mailbox_->messages_sent() - messages;
  statistics_.bytes_sent = mailbox_->bytes_sent() - bytes;
  has_current_ = false;
  step_ = {};
  return std::move(results_);
}

void Executor::run_deferred(const Row& row) {
  for (const Action& action : row) run_action(action);
  has_current_ = false;
}

void Executor::run_action(const Action& action) {
  current_ = action;
  has_current_ = true;
  if (!is_compute(action.op.kind)) return run_op(action.op);
  at::RecordFunction guard(at::RecordScope::USER_SCOPE);
  if (guard.isActive()) guard.before("dualpipe::" + to_string(action));
  started_ = -1;
  run_compute(action);
  statistics_.spans.push_back({action, started_, seconds()});
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

const TensorList& Executor::forward_inputs(const Op& op) {
  const Key key{op.stage, op.micro_batch};
  if (const auto found = live_.find(key); found != live_.end()) return found->second.inputs;
  TensorList inputs;
  if (op.stage == 0) {
    inputs = host_inputs(op.micro_batch);
  } else if (is_local(op.stage - 1, op.micro_batch)) {
    inputs = std::move(handover_.extract(key).mapped());
  } else {
    inputs = mailbox_->take_forward(op.stage, op.micro_batch);
  }
  mark_started();
  Live& live = live_[key];
  live.inputs = std::move(inputs);
  statistics_.peak_activations = std::max(statistics_.peak_activations, static_cast<int>(live_.size()));
  return live.inputs;
}

at::Tensor Executor::loss_of(const Op& op, const TensorList& outputs) {
  if (!is_last(op.stage) || step_.criterion == nullptr) return {};
  return step_.criterion->loss(outputs, labels_of(op.micro_batch));
}

void Executor::forward(const Op& op) {
  const TensorList& inputs = forward_inputs(op);
  WeightGradStore::Scope scope(store_);
  TensorList outputs = module(op.stage).forward(inputs);
  at::Tensor loss = loss_of(op, outputs);
  finish_forward(op, std::move(outputs), std::move(loss));
}

void Executor::keep_graph(Live& live, const TensorList& outputs, bool hooked) {
  live.roots = roots_of(outputs, &live.root_outputs);
  if (!hooked) return;
  for (const at::Tensor& output : outputs) live.stand_ins.push_back(stand_in_for(output));
}

void Executor::finish_last_stage(const Op& op, Live& live, TensorList outputs, at::Tensor loss) {
  if (step_.criterion != nullptr) {
    if (!loss.defined() || loss.numel() != 1) {
      throw ScheduleError(fmt::format("criterion, micro-batch {}", op.micro_batch),
                          fmt::format("must return a scalar, got {}",
                                      loss.defined() ? to_string(spec_of({loss})[0]) : "an undefined tensor"));
    }
    results_.losses[op.micro_batch] = loss.detach();
  }
  if (step_.return_outputs) results_.outputs[op.micro_batch] = detached(outputs);
  if (step_.training) {
    live.loss = loss;
    keep_graph(live, {loss}, false);
    if (hooks_.contains(op.stage)) {
      for (const at::Tensor& output : outputs) live.stand_ins.push_back(stand_in_for(output));
    }
  }
}

void Executor::finish_forward(const Op& op, TensorList outputs, at::Tensor loss) {
  const Key key{op.stage, op.micro_batch};
  Live& live = live_.at(key);
  if (is_last(op.stage)) {
    finish_last_stage(op, live, std::move(outputs), std::move(loss));
  } else {
    if (step_.training) keep_graph(live, outputs, hooks_.contains(op.stage));
    if (is_local(op.stage + 1, op.micro_batch)) {
      handover_[{op.stage + 1, op.micro_batch}] = leaves_of(outputs);
    } else {
      outbox_[make_op(op.stage, Kind::kSendForward, op.micro_batch)] = {std::move(outputs), {}, false};
    }
  }
  if (!step_.training) live_.erase(key);
}

// --- backward

const TensorList& Executor::output_grads(const Op& op) {
  const Key key{op.stage, op.micro_batch};
  if (!is_last(op.stage) && !output_grads_.contains(key)) {
    output_grads_[key] = mailbox_->take_backward(op.stage, op.micro_batch);
  }
  mark_started();
  return output_grads_[key];
}

const GraphRoots& Executor::roots_with_gradients(const Op& op) {
  const TensorList& grads = output_grads(op);
  Live& live = live_.at({op.stage, op.micro_batch});
  for (std::size_t i = 0; i < live.roots.edges.size(); ++i) {
    live.roots.gradients[i] = is_last(op.stage) ? at::full_like(live.loss.detach(), step_.loss_scale(op.micro_batch))
                                                : grads[live.root_outputs[i]];
  }
  return live.roots;
}

void Executor::finish_backward(const Op& op, TensorList input_grads) {
  const Key key{op.stage, op.micro_batch};
  Live& live = live_.at(key);
  output_grads_.erase(key);
  if (op.stage == 0) {
    if (any_requires_grad(live.inputs)) results_.input_grads[op.micro_batch] = std::move(input_grads);
  } else if (is_local(op.stage - 1, op.micro_batch)) {
    output_grads_[{op.stage - 1, op.micro_batch}] = std::move(input_grads);
  } else {
    outbox_[make_op(op.stage, Kind::kSendBackward, op.micro_batch)] = {std::move(input_grads), live.inputs, false};
  }
  if (op.kind == Kind::kBackward) {
    live_.erase(key);
    gradients_.collect(op.stage);
  } else {
    live = Live{};  // Still counted until its W is done.
  }
}

void Executor::backward(const Op& op) {
  const GraphRoots& roots = roots_with_gradients(op);
  finish_backward(op, full_backward(roots, live_.at({op.stage, op.micro_batch}).inputs));
}

void Executor::backward_input(const Op& op) {
  const Key key{op.stage, op.micro_batch};
  const GraphRoots& roots = roots_with_gradients(op);
  store_.begin();
  SplitResult split = input_backward(roots, live_.at(key).inputs, store_);
  store_.seal(key);
  if (split.weight_work) store_.add(key, std::move(split.weight_work), split.bytes);
  statistics_.peak_pending_weight_bytes = std::max(statistics_.peak_pending_weight_bytes, store_.pending_bytes());
  finish_backward(op, std::move(split.input_grads));
}

void Executor::backward_weight(const Op& op) {
  mark_started();
  const Key key{op.stage, op.micro_batch};
  store_.run(key);
  live_.erase(key);
  gradients_.collect(op.stage);
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

// --- overlapped pairs

class Executor::Pair : public PairIo {
 public:
  Pair(Executor& executor, const Action& action) : executor_(executor), f_(action.op), b_(*action.paired) {}

  StageModule& module0() override { return executor_.module(f_.stage); }
  StageModule& module1() override { return executor_.module(b_.stage); }
  const Criterion* criterion0() override { return executor_.is_last(f_.stage) ? executor_.step_.criterion : nullptr; }
  const TensorList& labels0() override { return executor_.labels_of(f_.micro_batch); }
  const TensorList& inputs0() override { return executor_.forward_inputs(f_); }
  const TensorList& inputs1() override { return live1().inputs; }
  TensorList outputs1() override { return live1().stand_ins; }
  const TensorList& output_grads1() override { return executor_.output_grads(b_); }
  at::Tensor loss1() override {
    return executor_.is_last(b_.stage) ? live1().loss * executor_.step_.loss_scale(b_.micro_batch) : at::Tensor();
  }

  void finish_forward(TensorList outputs0, at::Tensor loss0) override {
    finished_forward_ = true;
    executor_.finish_forward(f_, std::move(outputs0), std::move(loss0));
    send_now(make_op(f_.stage, Kind::kSendForward, f_.micro_batch));
  }
  void finish_backward(TensorList input_grads1) override {
    check(finished_forward_, "the forward of a pair is finished before its backward");
    executor_.finish_backward(b_, std::move(input_grads1));
    send_now(make_op(b_.stage, Kind::kSendBackward, b_.micro_batch));
  }
  void run_forward() override {
    executor_.forward(f_);
    send_now(make_op(f_.stage, Kind::kSendForward, f_.micro_batch));
  }
  void run_backward() override { executor_.backward(b_); }

 private:
  Live& live1() { return executor_.live_.at({b_.stage, b_.micro_batch}); }
  void send_now(const Op& op) {
    if (executor_.outbox_.contains(op)) executor_.send(op);
  }

  Executor& executor_;
  Op f_;
  Op b_;
  bool finished_forward_ = false;
};

void Executor::run_pair(const Action& action) {
  Pair pair(*this, action);
  const int stage0 = action.op.stage;
  const int stage1 = action.paired->stage;
  const auto reason =
      why_no_hook({stage0, module(stage0), hooks_.contains(stage0)}, {stage1, module(stage1), hooks_.contains(stage1)});
  WeightGradStore::Scope scope(store_);
  if (reason) {
    ++statistics_.sequential_pairs[*reason];
    run_in_sequence(pair);
  } else {
    ++statistics_.overlapped_pairs;
    run_by_hook(pair, hooks_.at(stage0));
  }
}

}  // namespace dualpipe
