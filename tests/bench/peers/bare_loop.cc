#include "tests/bench/peers/bare_loop.h"

#include <ATen/ops/zeros.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "tests/bench/support/serve.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

Milliseconds length_of(const Action& action, const std::vector<double>& pace) {
  if (action.is_overlap()) return Milliseconds(pace.at(3));
  switch (action.op.kind) {
    case Kind::kForward:
      return Milliseconds(pace.at(0));
    case Kind::kBackwardInput:
      return Milliseconds(pace.at(1));
    case Kind::kBackwardWeight:
      return Milliseconds(pace.at(2));
    default:
      return Milliseconds(pace.at(1) + pace.at(2));
  }
}

class BareLoop {
 public:
  BareLoop(c10d::Backend& gloo, const nlohmann::json& request)
      : gloo_(gloo),
        waiting_(request.at("kind") == "waiting"),
        pace_(request.at("pace_ms").get<std::vector<double>>()),
        values_(request.at("bytes").get<std::int64_t>() / static_cast<std::int64_t>(sizeof(float))),
        program_(lower(builtin_registry().make(request.at("schedule"), {gloo.getSize(), request.at("microbatches")}),
                       {.reduce_grad = false})),
        out_(at::zeros({values_})) {}

  void step() {
    for (const Action& action : row()) run(action);
    for (const WorkPtr& send : sends_) finish(send);
    sends_.clear();
  }

  // A step that does not sleep.
  void rehearse() {
    const std::vector<double> pace = std::exchange(pace_, std::vector<double>(4, 0.0));
    step();
    pace_ = pace;
  }

  std::size_t actions() const {
    return count([](const Action&) { return 1; });
  }
  std::size_t operations() const {
    return count([](const Action& action) { return action.is_overlap() ? 2 : 1; });
  }
  const Overshoot& overshoot() const { return overshoot_; }

 private:
  struct Receive {
    at::Tensor tensor;
    WorkPtr work;
  };

  const Row& row() const { return program_.rows.at(gloo_.getRank()); }

  template <typename Of>
  std::size_t count(Of of) const {
    std::size_t total = 0;
    for (const Action& action : row()) {
      if (is_compute(action.op.kind)) total += of(action);
    }
    return total;
  }

  void run(const Action& action) {
    if (is_compute(action.op.kind)) return compute(action);
    if (is_send(action.op.kind)) return send(action.op);
    if (is_recv(action.op.kind) && !waiting_) post(action.op);
  }

  void compute(const Action& action) {
    const Op* needed[] = {&action.op, action.paired ? &*action.paired : nullptr};
    if (waiting_) {
      for (const Op* op : needed) {
        if (op) post_needed(*op);
      }
    }
    for (const Op* op : needed) {
      if (op) take(*op);
    }
    const Milliseconds length = length_of(action, pace_);
    if (length.count() > 0) Deadline(length).sleep(overshoot_);
  }

  // The receive of what the operation needs from another rank.
  std::optional<Op> need_of(const Op& op) const {
    const bool forward = op.kind == Kind::kForward;
    const int from = forward ? op.stage - 1 : op.stage + 1;
    const Placement& placement = program_.placement;
    if (op.kind == Kind::kBackwardWeight || from < 0 || from == placement.stages()) return std::nullopt;
    if (placement.rank_of(from, op.micro_batch) == gloo_.getRank()) return std::nullopt;
    return make_op(op.stage, forward ? Kind::kRecvForward : Kind::kRecvBackward, op.micro_batch);
  }

  void post_needed(const Op& op) {
    if (const auto need = need_of(op)) post(*need);
  }

  void take(const Op& op) {
    const auto need = need_of(op);
    if (!need) return;
    const auto found = receives_.find(*need);
    finish(found->second.work);
    free_.push_back(std::move(found->second.tensor));
    receives_.erase(found);
  }

  static void finish(const WorkPtr& work) {
    if (!work->wait()) throw std::runtime_error("a message was aborted");
  }

  // Unique among the messages of a step between two ranks in one direction.
  int tag(const Op& op, bool forward) const {
    return 2 * (op.micro_batch * program_.placement.stages() + op.stage) + forward;
  }

  void post(const Op& op) {
    const bool forward = op.kind == Kind::kRecvForward;
    const int sender_stage = forward ? op.stage - 1 : op.stage + 1;
    Receive receive{free_.empty() ? at::zeros({values_}) : free_.back(), {}};
    if (!free_.empty()) free_.pop_back();
    std::vector<at::Tensor> tensors{receive.tensor};
    const Op sent = make_op(sender_stage, op.kind, op.micro_batch);
    receive.work = gloo_.recv(tensors, program_.placement.rank_of(sender_stage, op.micro_batch), tag(sent, forward));
    receives_.emplace(op, std::move(receive));
  }

  void send(const Op& op) {
    const bool forward = op.kind == Kind::kSendForward;
    std::vector<at::Tensor> tensors{out_};
    const int to = program_.placement.rank_of(forward ? op.stage + 1 : op.stage - 1, op.micro_batch);
    sends_.push_back(gloo_.send(tensors, to, tag(op, forward)));
  }

  c10d::Backend& gloo_;
  bool waiting_;
  std::vector<double> pace_;
  std::int64_t values_;
  Program program_;
  at::Tensor out_;                // All messages are this one.
  std::vector<at::Tensor> free_;  // To receive into.
  Overshoot overshoot_;
  std::map<Op, Receive> receives_;
  std::vector<WorkPtr> sends_;
};

}  // namespace

nlohmann::json answer_by_bare_loop(c10d::Backend& gloo, const nlohmann::json& request) {
  BareLoop loop(gloo, request);
  if (!request.contains("at")) {
    loop.rehearse();
    return {{"ready", true}};
  }
  const int steps = request.value("steps", 1);
  nlohmann::json answer = timed(request, [&] {
    for (int step = 0; step < steps; ++step) loop.step();
  });
  answer.update({{"actions", steps * loop.actions()},
                 {"operations", steps * loop.operations()},
                 {"overshoot", describe(loop.overshoot())}});
  return answer;
}

}  // namespace dualpipe::bench
