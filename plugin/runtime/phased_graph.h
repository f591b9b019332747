// plugin/runtime/phased_graph.h
//
// A stage's forward phase by phase, each compute phase with a graph of its own, cut from the next one's by leaves; and
// its backward phase by phase in reverse. In a merged pair step() runs one step of the program. Alone, F and I await
// each exchange where they post it; B awaits it behind the W of the compute phase whose I came before it, and computes
// I and W at once where no exchange follows. All give the same numbers to the bit.
//
// After its F a compute phase keeps its graph and inputs, or where it recomputes its inputs alone; after its I nothing
// but its weight work in the store, under its own key. An exchange keeps what its context holds, until its way back is
// done. An exchange under way is a member until its wait() has returned, so whatever throws frees nothing that is still
// being moved.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/graph_piece.h"
#include "plugin/runtime/phase.h"
#include "plugin/runtime/stage_graph.h"
#include "plugin/schedule/merge.h"

namespace dualpipe {

class PhasedGraph final : public StageGraph {
 public:
  // `phases` outlive the graph. Where a loss is computed the last one is a compute phase.
  PhasedGraph(GraphSite site, const std::vector<Phase>& phases, TensorList inputs);

  StageOutputs forward() override;
  TensorList backward(const TensorList& gradients) override;
  TensorList backward_input(const TensorList& gradients) override;
  void backward_weight() override;

  // One kRun, kPost or kWait of a merged program. All F of a side, then take_outputs(); start_backward(), all I, then
  // take_input_gradients(), then the W that are left.
  void step(const PairStep& step);
  StageOutputs take_outputs();
  void start_backward(TensorList gradients);
  TensorList take_input_gradients();

 private:
  struct State {
    GraphPiece piece;  // Of a compute phase.
    PhaseContext context;
    std::unique_ptr<PendingExchange> under_way;  // Of an exchange.
    double posted = 0;                           // When it was.
    std::size_t inputs = 0;                      // How many tensors went in, and for how many a gradient comes back.
    std::size_t outputs = 0;
  };
  class Recorded;

  void run(PhasePart part, int phase);
  void post(PhasePart part, int phase);
  void wait(PhasePart part, int phase);
  void exchange(PhasePart part, int phase);

  void run_forward(int phase);
  void run_backward(int phase);
  void run_input(int phase);
  void run_weight(int phase);
  StageOutputs compute(int phase);
  void recompute(int phase);
  bool recomputes_in_weight(int phase) const;
  void leave_to_weight(int phase);
  void take_result(PhasePart part, int phase, const TensorList& result);
  const TensorList& gradients_of(int phase);
  bool is_last(int phase) const { return phase + 1 == static_cast<int>(phases_.size()); }
  // By the next phase of the backward.
  bool is_followed_by_exchange(int phase) const;
  bool is_compute(int phase) const { return phases_[phase].spec.kind == PhaseKind::kCompute; }
  void require_declared(int phase, const char* verb, const std::optional<TensorForms>& declared,
                        const TensorList& tensors) const;
  std::string origin(int phase) const;
  std::string name_of(char letter, int phase) const;  // "3F5 0.attention"
  void note(PhasePart part, char letter, int phase, double start);

  const std::vector<Phase>& phases_;
  std::vector<State> states_;
  TensorList values_;     // Between two F: leaves, what the next one starts from.
  at::Tensor loss_;       // Without its graph.
  TensorList gradients_;  // Between two I: of the outputs of the phase that is next.
};

}  // namespace dualpipe
