// The overlapped pairs of plugin/runtime/executor.h.
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
    executor_.close_pair();
    executor_.current_ = action_;
  }

  const Action& action() const { return action_; }
  // Its own messages leave with the outputs; what is posted or settled for them comes behind.
  bool holds_up(const Op& op) const {
    const auto is_of = [&](const Op& mine) { return op.stage == mine.stage && op.micro_batch == mine.micro_batch; };
    return !sent_outputs_ && (is_of(f_) || is_of(b_));
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
    open_pair_ = {std::move(pair), &program->second, {}};
  } else {
    const WeightGradStore::Scope scope(store_);
    run_by_hook(*pair, overlap_.offers.at(action.op.stage).hook);
    end_backward(*action.paired);
  }
}

// Taking gradients that are on this rank never waits, so an exchange that follows may as well start before a closing.
bool Executor::starts_at_once(const Action& action) const {
  if (!action.is_overlap() || !overlap_.programs.contains({action.op.stage, action.paired->stage})) return false;
  const Op& b = *action.paired;
  return is_last(b.stage) ? results_.losses.contains(b.micro_batch) : handover_back_.contains(key_of(b));
}

bool Executor::waits_for_closing(const Op& op) const { return open_pair_ && open_pair_->pair->holds_up(op); }

void Executor::close_pair() {
  const auto open = std::exchange(open_pair_, std::nullopt);
  if (!open) return;
  current_ = open->pair->action();
  close_by_phases(*open->pair, *open->program);
  end_backward(*current_.paired);
  for (const Op& send : open->owed) run_op(send);
}

// Between pairs, so that it is part of the one that it closes.
void Executor::close_pair_alone() {
  if (!open_pair_) return;
  close_pair();
  recorder_.statistics.spans.back().end = recorder_.seconds();
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
