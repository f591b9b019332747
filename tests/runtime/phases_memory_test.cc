// What stages hold that run phase by phase, with and without recompute. The number of a field report is the report's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/runtime/comparison.h"
#include "tests/runtime/counted.h"
#include "tests/runtime/phased_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

struct Held {
  int peak = 0;        // Most saved tensors alive on any rank.
  int recomputed = 0;  // Phases, on any rank.
};

// One step beside the whole model; nothing is left alive behind it.
Held held_by(const std::string& schedule, int ranks, int num_microbatches, bool recompute) {
  Held held;
  std::mutex mutex;
  Comparison comparison = mlp_comparison(schedule, ranks, num_microbatches);
  const auto oracle_stage = [](int stage, int) { return phased_stage(stage); };
  comparison.make = oracle_stage;
  const auto oracle = all_stages(comparison);
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  run_on_ranks(comparison, [&](Rank& rank) {
    auto alive = std::make_shared<std::atomic<int>>(0);
    int peak = 0;
    PhasedStageOptions options;
    options.recompute = recompute;
    options.ones = [alive, &peak](at::IntArrayRef sizes) {
      const at::Tensor ones = counted(at::ones(sizes, at::kDouble), alive);
      peak = std::max<int>(peak, *alive);
      return ones;
    };
    Comparison own = comparison;
    own.make = [&options](int stage, int) { return phased_stage(stage, options); };
    const auto stages = stages_of_rank(own, rank.index);
    Pipeline pipeline = make_pipeline(own, rank, stages);
    const StepResult result = train_once(own, pipeline);
    EXPECT_EQ(*alive, 0);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto wanted = oracle[pipeline.stages()[i]]->parameters();
      for (std::size_t p = 0; p < wanted.size(); ++p) {
        expect_close(stages[i]->parameters()[p].grad(), wanted[p].grad(), 1e-10, "gradient");
      }
    }
    const std::lock_guard lock(mutex);
    held.peak = std::max(held.peak, peak);
    held.recomputed = std::max(held.recomputed, result.statistics.recomputed_phases);
  });
  return held;
}

// Recompute runs once per phase and micro-batch, also where the backward is split, and saves memory there too.
TEST(FieldReport38, SplitBackwardWithRecomputeHoldsLess) {
  for (const std::string schedule : {"zb1p", "1f1b"}) {
    const Held kept = held_by(schedule, 2, 16, false);
    const Held recomputed = held_by(schedule, 2, 16, true);
    EXPECT_EQ(kept.recomputed, 0);
    EXPECT_EQ(recomputed.recomputed, 16 * 5) << "two attentions, two MLPs and the sum per micro-batch";
    EXPECT_EQ(recomputed.peak, 1) << schedule << ": that of the phase that is being computed";
    EXPECT_GE(kept.peak, 2 * 2) << schedule << ": two layers of two micro-batches";
  }
  EXPECT_EQ(held_by("zb1p", 2, 16, true).peak, held_by("1f1b", 2, 16, true).peak);
}

TEST(Recompute, HoldsLessInMergedPairs) {
  const Held kept = held_by("dualpipe", 4, 16, false);
  const Held recomputed = held_by("dualpipe", 4, 16, true);
  EXPECT_EQ(recomputed.recomputed, 16 * 5);
  EXPECT_EQ(recomputed.peak, 1);
  EXPECT_GE(kept.peak, 2 * 4);
}

}  // namespace
}  // namespace dualpipe
