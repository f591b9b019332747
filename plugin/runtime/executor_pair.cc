// The overlapped pairs of plugin/runtime/executor.h.
#include <algorithm>
#include <memory>
#include <utility>

#include "plugin/runtime/executor.h"
#include "plugin/runtime/overlap.h"
#include "plugin/schedule/error.h"

namespace dualpipe {

class Executor::Pair : public PairIo {
 public:
  Pair(Executor& executor, const Action& action)
      : executor_(executor),
        action_(action),
        f_(action.op),
        b_(*action.paired),
        graph1_(executor.graph_of(b_)),
        inputs1_(graph1_.inputs()) {}

  StageGraph& graph0() override { return executor_.begin_forward(f_); }
  const Criterion* criterion0() override { return executor_.is_last(f_.stage) ? executor_.step_.criterion : nullptr; }
  const TensorList& labels0() override { return executor_.labels_of(f_.micro_batch); }
  StageGraph& graph1() override { return graph1_; }
  TensorList gradients1() override { return executor_.take_gradients(b_); }

  void send_outputs(StageOutputs outputs0) override {
    executor_.finish_forward(f_, std::move(outputs0));
    sent_outputs_ = true;
    send_now(f_leaves());
    send_now(b_leaves());
  }
  void send_gradients(TensorList input_grads1) override {
    executor_.pass_gradients(b_, std::exchange(inputs1_, {}), std::move(input_grads1));
    if (sent_outputs_) send_now(b_leaves());
  }
  void close_previous() override {
    executor_.close_open_pair();
    executor_.current_ = action_;
  }

  const Action& action() const { return action_; }
  // Its own messages, which leave with the outputs.
  bool holds_back(const Op& send) const { return !sent_outputs_ && (send == f_leaves() || send == b_leaves()); }
  // What is posted or settled for those cannot stand before them.
  bool must_close_before(const Op& op) const {
    const Op settle_f = make_op(f_.stage, Kind::kWaitSendForward, f_.micro_batch);
    const Op settle_b = make_op(b_.stage, Kind::kWaitSendBackward, b_.micro_batch);
    const Op answer = make_op(f_.stage, Kind::kRecvBackward, f_.micro_batch);
    return !sent_outputs_ && (op == settle_f || op == settle_b || op == answer);
  }

 private:
  Op f_leaves() const { return make_op(f_.stage, Kind::kSendForward, f_.micro_batch); }
  Op b_leaves() const { return make_op(b_.stage, Kind::kSendBackward, b_.micro_batch); }
  void send_now(const Op& op) {
    if (executor_.outbox_.contains(op)) executor_.send(op);
  }

  Executor& executor_;
  Action action_;
  Op f_;
  Op b_;
  StageGraph& graph1_;
  TensorList inputs1_;  // What the gradients belong to.
  bool sent_outputs_ = false;
};

void Executor::run_pair(const Action& action) {
  const OverlapPlan::Pair stages{action.op.stage, action.paired->stage};
  const auto reason = overlap_.in_sequence.find(stages);
  if (reason != overlap_.in_sequence.end()) return run_in_sequence(action, reason->second);
  auto pair = std::make_shared<Pair>(*this, action);
  const auto program = overlap_.programs.find(stages);
  ++recorder_.statistics.overlapped_pairs;
  if (program != overlap_.programs.end()) {
    ++recorder_.statistics.pairs_by_phases;
    run_by_phases(*pair, program->second);
    if (may_stay_open(*pair)) {
      open_pair_ = {std::move(pair), &program->second, {}};
    } else {
      close(*pair, program->second);
    }
  } else {
    const WeightGradStore::Scope scope(store_);
    run_by_hook(*pair, overlap_.offers.at(action.op.stage).hook);
    end_backward(*action.paired);
  }
}

// The row goes on with a pair whose first exchange can be posted ahead of the closing.
bool Executor::may_stay_open(const Pair& pair) const {
  for (const Action& action : behind_) {
    const Kind kind = action.op.kind;
    if (!is_send(kind) && !is_recv(kind) && !is_wait_send(kind)) return starts_at_once(action);
    if (pair.must_close_before(action.op)) return false;
  }
  return false;
}

// Taking gradients that are on this rank waits for no message.
bool Executor::starts_at_once(const Action& action) const {
  if (!action.is_overlap()) return false;
  const auto program = overlap_.programs.find({action.op.stage, action.paired->stage});
  if (program == overlap_.programs.end()) return false;
  const auto opening = opening_of(program->second);
  const Op& b = *action.paired;
  return std::any_of(opening.begin(), opening.end(), [](const PairStep& s) { return s.kind == PairStepKind::kPost; }) &&
         (is_last(b.stage) ? results_.losses.contains(b.micro_batch) : handover_back_.contains(key_of(b)));
}

bool Executor::leaves_with_closing(const Op& send) const { return open_pair_ && open_pair_->pair->holds_back(send); }

void Executor::close(Pair& pair, const PairProgram& program) {
  close_by_phases(pair, program);
  end_backward(*pair.action().paired);
}

void Executor::close_open_pair() {
  const auto open = std::exchange(open_pair_, std::nullopt);
  if (!open) return;
  current_ = open->pair->action();
  close(*open->pair, *open->program);
  for (const Op& send : open->owed) run_op(send);
}

// What the next stage waits for leaves before the backward begins.
void Executor::run_in_sequence(const Action& action, const std::string& reason) {
  ++recorder_.statistics.sequential_pairs[reason];
  forward(action.op);
  if (const Op leaves = make_op(action.op.stage, Kind::kSendForward, action.op.micro_batch); outbox_.contains(leaves)) {
    send(leaves);
  }
  backward(*action.paired);
}

}  // namespace dualpipe
