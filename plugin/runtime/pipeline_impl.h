// plugin/runtime/pipeline_impl.h
//
// The inside of Pipeline: its parts (pipeline.cc makes them) and its step (pipeline_step.cc).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/executor.h"
#include "plugin/runtime/failure_path.h"
#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/gradient_watch.h"
#include "plugin/runtime/loss_weights.h"
#include "plugin/runtime/pipeline_plan.h"
#include "plugin/runtime/replicas.h"

namespace dualpipe {

struct Pipeline::Impl {
  Impl(std::string name, std::shared_ptr<Transport> over, std::vector<std::shared_ptr<StageModule>> modules,
       PipelineOptions given);

  std::vector<StageParameter> take_stages(std::vector<std::shared_ptr<StageModule>> modules);
  void build(std::vector<StageParameter> parameters);
  std::unique_ptr<GradientReduction> make_reduction(std::vector<StageParameter> parameters);
  std::unique_ptr<GradientReduction> watched(std::unique_ptr<GradientReduction> sums);
  std::unique_ptr<LossWeights> make_weights() const;

  // Both on the failure path.
  StepResult guarded_run(const std::function<StepResult()>& body);
  void guarded(const std::function<std::string()>& action, const std::function<void()>& body);

  MicroBatches split(const TensorList& batch, std::size_t count) const;
  StepResult run(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion, bool training,
                 bool return_outputs);
  StepResult run_split(const TensorList& inputs, const TensorList& labels, const Criterion* criterion, bool training,
                       bool return_outputs);
  StepInputs step_inputs(const MicroBatches& inputs, const MicroBatches& labels, const Criterion* criterion);
  std::optional<double> mean_over_ranks(double local, bool has_losses);
  StepResult results(StepOutputs outputs, const Criterion* criterion);
  void backward_into_host(const MicroBatches& inputs, StepOutputs& outputs);
  void require_no_pending_gradients() const;
  void compare_copies();
  void finish_gradients();
  std::optional<NonFiniteSighting> first_non_finite() const;  // On this rank.
  std::optional<NonFinite> find_non_finite();                 // Collective.
  StepStatistics all_statistics() const;

  std::string name;
  std::shared_ptr<Transport> transport;
  PipelineOptions options;
  Replicas replicas;
  PipelinePlan plan;
  Stages stages;
  OverlapPlan overlap;  // Until the executor has it.
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<GradientReduction> reduction;
  GradientWatch* watch = nullptr;  // The reduction, where what goes into it is watched.
  bool sums_gradients = false;     // Over ranks, at least some of them.
  std::shared_ptr<RingLog> log;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<LossWeights> weights;
  std::map<int, double> weight_of;         // By micro-batch, of the current step.
  bool gradients_open = false;             // A step's gradients await finish_gradients().
  bool copies_compared = false;            // Done before the first training step.
  std::vector<ReductionStart> reductions;  // Of the current step.
  StepStatistics statistics;               // Of the last training step.
  std::unique_ptr<FailurePath> failure;    // Last: its watchdog uses the others.
};

}  // namespace dualpipe
