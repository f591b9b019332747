// plugin/runtime/executor.h
//
// Interprets one rank's row of a Program: nothing here decides when a message moves or which micro-batch comes next.
//
// A pair by phases is closed right behind it, or, where the next pair can begin an exchange without waiting for a
// message, behind the start of that exchange (plugin/runtime/overlap.h): the same computes in the same order, and what
// the row sends between the two leaves with the closing.
//
// Between actions a micro-batch lives as its stage's graph (plugin/runtime/stage_graph.h); outputs themselves are freed
// once sent. Everything lives in members, so an exception in a module leaves messages under way intact.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/gradients.h"
#include "plugin/runtime/mailbox.h"
#include "plugin/runtime/non_finite.h"
#include "plugin/runtime/overlap_plan.h"
#include "plugin/runtime/stage_graph.h"
#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/step_recorder.h"
#include "plugin/runtime/weight_grad_store.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct StepInputs {
  std::map<int, TensorList> inputs;       // By micro-batch, of those that enter at this rank.
  std::map<int, TensorList> labels;       // By micro-batch, of those whose loss is computed at this rank.
  const Criterion* criterion = nullptr;   // Null: no loss, which only evaluation allows.
  std::function<double(int)> loss_scale;  // What a micro-batch's loss counts for; may wait for other ranks.
  bool training = true;
  bool return_outputs = false;
};

struct StepOutputs {
  std::map<int, at::Tensor> losses;       // By micro-batch: what the criterion returned, detached.
  std::map<int, TensorList> outputs;      // By micro-batch, of the last stage, detached; where asked for.
  std::map<int, TensorList> input_grads;  // By micro-batch, of the first stage's inputs that require grad.
};

class Executor {
 public:
  // `gradients` and `reduction` outlive the executor. `overlap` covers the pairs of every row that run() gets. Compute
  // actions go into `log`, which is never null.
  Executor(int rank, Placement placement, const Stages& stages, OverlapPlan overlap, std::shared_ptr<Mailbox> mailbox,
           Gradients& gradients, GradientReduction& reduction, std::shared_ptr<RingLog> log);
  ~Executor();

  StepOutputs run(const Row& row, StepInputs inputs);
  // The W that defer_tail_weight_gradients left out of the row.
  void run_deferred(const Row& row);

  const WeightGradStore& store() const { return store_; }
  // Stages whose REDUCE_GRAD has run since the last run().
  const std::set<int>& reduced() const { return reduced_; }
  const StepStatistics& statistics() const { return recorder_.statistics; }
  const OverlapPlan& overlap() const { return overlap_; }
  // Into the statistics from the next step on.
  void sample_memory_by(std::function<std::int64_t()> live_bytes) { recorder_.live_bytes = std::move(live_bytes); }
  // From the next step on, what enters and leaves stages is looked at.
  void check_finite() { finite_.emplace(); }
  // Of the last training step, on this rank; nothing where it is not looked at.
  std::optional<NonFiniteSighting> first_non_finite(int rank) const;
  // What was running last, "3B2"; for a failure's record.
  std::string current_action() const;

 private:
  using Key = std::pair<int, int>;  // (stage, micro-batch)
  struct Outgoing {
    TensorList tensors;
    TensorList inputs;  // SEND_B: what the gradients belong to.
    bool sent = false;
  };
  class Pair;
  // A pair by phases whose closing has not run yet.
  struct OpenPair {
    std::shared_ptr<Pair> pair;
    const PairProgram* program;
    std::vector<Op> owed;  // Sends of the row that wait for it.
  };

  void run_row(const Row& row);
  void run_action(const Action& action);
  void run_op(const Op& op);
  void run_compute(const Action& action);
  void run_pair(const Action& action);
  bool starts_at_once(const Action& action) const;
  bool may_stay_open(const Pair& pair) const;
  bool leaves_with_closing(const Op& send) const;
  void close(Pair& pair, const PairProgram& program);
  void close_open_pair();
  void run_in_sequence(const Action& action, const std::string& reason);
  void forward(const Op& op);
  void backward(const Op& op);
  void backward_input(const Op& op);
  void backward_weight(const Op& op);

  static Key key_of(const Op& op) { return {op.stage, op.micro_batch}; }
  StageGraph& graph_of(const Op& op) { return *live_.at(key_of(op)); }
  StageGraph& begin_forward(const Op& op);
  TensorList take_inputs(const Op& op);
  TensorList host_inputs(int micro_batch);
  std::unique_ptr<StageGraph> make_graph(const Op& op, TensorList inputs);
  void finish_forward(const Op& op, StageOutputs outputs);
  void finish_last_stage(const Op& op, StageOutputs outputs);
  TensorList take_gradients(const Op& op);
  void pass_gradients(const Op& op, TensorList inputs, TensorList input_grads);
  void end_backward(const Op& op);
  void send(const Op& op);
  void mark_ready(double asked);
  void look(const Op& op, Crossing crossing, const TensorList& tensors);

  bool is_last(int stage) const { return stage == placement_.stages() - 1; }
  bool is_local(int stage, int micro_batch) const { return placement_.rank_of(stage, micro_batch) == rank_; }
  const TensorList& labels_of(int micro_batch) const;

  int rank_;
  Placement placement_;
  std::map<int, std::shared_ptr<StageModule>> modules_;
  OverlapPlan overlap_;
  std::shared_ptr<Mailbox> mailbox_;
  Gradients& gradients_;
  GradientReduction& reduction_;

  std::shared_ptr<RingLog> log_;
  std::optional<FiniteWatch> finite_;

  WeightGradStore store_;
  StepRecorder recorder_;
  StepInputs step_;
  StepOutputs results_;
  std::map<Key, std::unique_ptr<StageGraph>> live_;
  std::map<Key, TensorList> handover_;       // Inputs of a stage whose previous stage is on this rank.
  std::map<Key, TensorList> handover_back_;  // Output gradients of a stage whose next stage is on this rank.
  std::map<Op, Outgoing> outbox_;
  std::set<int> reduced_;
  std::optional<OpenPair> open_pair_;

  std::span<const Action> behind_;  // What the row holds behind the current action.

  Action current_{};
  bool has_current_ = false;
  double started_ = -1;  // When the first of what the current action needs was there; negative while it is not.
  double waited_ = 0;    // For what it needed behind that.
};

}  // namespace dualpipe
