// tests/bench/overlap/moe_stage.h
//
// A stage of mixture-of-experts layers whose compute sleeps and whose all-to-all is real: per layer attention, dispatch
// (each token to kCopies experts of the other rank), MLP, combine (their sum, back on the token's rank).
#pragma once

#include <memory>
#include <vector>

#include "plugin/runtime/stage_module.h"
#include "tests/bench/overlap/expert_group.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {

struct StageCosts {
  int layers = 4;
  double compute_ms = 10;    // Of each F, I and W of an attention and of an MLP.
  double exchange_ms = 5;    // Of a dispatch, a combine and their ways back; for the merge.
  std::int64_t values = 16;  // Float values that an exchange moves each way, a multiple of kCopies.
};

inline constexpr std::int64_t kCopies = 16;

// What merge() and the simulators know of the stage.
Phases phase_specs(const StageCosts& costs);

class MoeStage : public StageModule {
 public:
  // `experts` and `sleeper` outlive the stage. Without `phased` the stage declares no phases, and its exchanges are
  // awaited where they start, in the forward and in the backward.
  MoeStage(const StageCosts& costs, bool phased, ExpertGroup& experts, Sleeper& sleeper);

  // {[values / kCopies]} -> the same
  TensorList forward(const TensorList& inputs) override;
  std::vector<Phase> phases() override;

 private:
  at::Tensor compute(std::size_t index, const at::Tensor& input);

  StageCosts costs_;
  bool phased_;
  ExpertGroup& experts_;
  Sleeper& sleeper_;
  std::vector<at::Tensor> weights_;  // Of every compute phase.
};

}  // namespace dualpipe::bench
