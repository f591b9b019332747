// tests/runtime/comparison.h
//
// One step (or several) of a pipeline beside the whole model in one process: losses, outputs and every gradient.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin/runtime/dualpipe.h"
#include "tests/support/rank.h"
#include "tests/support/whole_model.h"

namespace dualpipe {

using StageFactory = std::function<std::shared_ptr<StageModule>(int stage, int stages)>;

struct Comparison {
  std::string schedule = "dualpipe";
  int ranks = 2;
  PipelineOptions options{.num_microbatches = 4};
  StageFactory make;    // The same stage, weights included, on every call.
  MicroBatches inputs;  // By micro-batch of the global batch.
  MicroBatches labels;  // Likewise.
  Criterion criterion = mean_square();
  double tolerance = 1e-10;  // |g - r| / |r| per tensor.
  bool over_gloo = false;
  int steps = 1;  // Without zeroing gradients in between.
  // Called on each rank after the last step, with what it returned.
  std::function<void(Rank&, Pipeline&, const StepResult&)> check;

  static Criterion mean_square();  // Of outputs[0] - labels[0]; a mean.
};

// The built-in schedules' names.
const std::vector<std::string>& all_schedules();

// mlp_stage() everywhere, micro-batches of [4, 8].
Comparison mlp_comparison(const std::string& schedule, int ranks, int num_microbatches);

// One step on the comparison's micro-batches.
StepResult train_once(const Comparison& comparison, Pipeline& pipeline);

// Fails the test where anything differs. All tensors are float64 unless the case says otherwise.
void expect_like_whole_model(const Comparison& comparison);

// The pieces, for tests that go their own way.
int stages_of(const Comparison& comparison);
std::vector<std::shared_ptr<StageModule>> all_stages(const Comparison& comparison);
std::vector<std::shared_ptr<StageModule>> stages_of_rank(const Comparison& comparison, int rank);
Pipeline make_pipeline(const Comparison& comparison, Rank& rank, std::vector<std::shared_ptr<StageModule>> stages);
MicroBatches select(const MicroBatches& all, const std::vector<int>& indices);
void run_on_ranks(const Comparison& comparison, const std::function<void(Rank&)>& body);
// Norm-wise; two undefined tensors are equal.
void expect_close(const at::Tensor& given, const at::Tensor& wanted, double tolerance, const std::string& what);

// Micro-batches of one float64 tensor [rows, width] each, by seed.
MicroBatches random_micro_batches(int count, std::vector<std::int64_t> sizes, std::uint64_t seed);

// Linear, GELU, Linear (float64, `width` wide), weights by stage.
std::shared_ptr<StageModule> mlp_stage(int stage, int width = 8);

// A stage from parameters and a function, weights by the caller.
std::shared_ptr<StageModule> function_stage(std::vector<std::pair<std::string, at::Tensor>> parameters,
                                            std::function<TensorList(const TensorList&)> forward, OverlapHook hook = {},
                                            std::vector<Phase> phases = {});
// A float64 leaf of normal values that requires grad, by seed.
at::Tensor weight(std::vector<std::int64_t> sizes, std::uint64_t seed);

}  // namespace dualpipe
