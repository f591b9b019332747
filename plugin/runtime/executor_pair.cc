// The overlapped pairs of plugin/runtime/executor.h.
#include <utility>

#include "plugin/runtime/executor.h"
#include "plugin/runtime/overlap.h"
#include "plugin/schedule/error.h"

namespace dualpipe {

class Executor::Pair : public PairIo {
 public:
  Pair(Executor& executor, const Action& action)
      : executor_(executor),
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
    sent_outputs_ = true;
    executor_.finish_forward(f_, std::move(outputs0));
    send_now(make_op(f_.stage, Kind::kSendForward, f_.micro_batch));
  }
  void send_gradients(TensorList input_grads1) override {
    check(sent_outputs_, "the forward of a pair is finished before its backward");
    executor_.pass_gradients(b_, std::exchange(inputs1_, {}), std::move(input_grads1));
    send_now(make_op(b_.stage, Kind::kSendBackward, b_.micro_batch));
  }

 private:
  void send_now(const Op& op) {
    if (executor_.outbox_.contains(op)) executor_.send(op);
  }

  Executor& executor_;
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
  Pair pair(*this, action);
  const auto program = overlap_.programs.find(stages);
  ++recorder_.statistics.overlapped_pairs;
  if (program != overlap_.programs.end()) {
    ++recorder_.statistics.pairs_by_phases;
    run_by_phases(pair, program->second);
  } else {
    const WeightGradStore::Scope scope(store_);
    run_by_hook(pair, overlap_.offers.at(action.op.stage).hook);
  }
  end_backward(*action.paired);
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
