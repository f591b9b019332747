// plugin/runtime/dualpipe.h
//
// The public header: a pipeline from a schedule name, a c10d process group, this rank's stage modules and options.
//
//   auto pipeline = dualpipe::Pipeline("dualpipe", group, {first, second}, {.num_microbatches = 8});
//   auto result = pipeline.step({tokens}, {labels}, criterion);
//   optimizer.step();
//
// Which rank gives and gets what (P pipeline ranks, M micro-batches over both directions):
//
//   schedule            modules, in placement order      inputs of              labels, losses and outputs of
//   1f1b, zb1p          stage r                          rank 0: 0..M-1         rank P-1: 0..M-1
//   interleaved_1f1b    stages r, P+r, 2P+r, ...         rank 0: 0..M-1         rank P-1: 0..M-1
//   dualpipev           stages r and 2P-1-r              rank 0: 0..M-1         rank 0: 0..M-1
//   dualpipe            stages r and P-1-r               rank 0: 0..M/2-1       rank P-1: 0..M/2-1
//                                                        rank P-1: M/2..M-1     rank 0: M/2..M-1
//
// input_micro_batches() and loss_micro_batches() say it for any schedule, CSV files included. Other ranks pass nothing.
//
// Gradients are those of the global loss (plugin/runtime/criterion.h), summed over mirrors, final when step() returns,
// or with defer_tail_weight_gradients after finish_gradients(), which OptimizerHook calls. They add to what is there.
// Hooks that run after a gradient was accumulated see what a B or W left, before anything is summed over ranks, as
// often as there are micro-batches of the stage here: "final" is the event above, not a hook.
//
// Beside other dimensions of parallelism (PipelineOptions::parallel): each pipeline is one tensor and one data rank, is
// made by all its replicas with the same schedule and options, and takes its own M micro-batches. The table stays; what
// changes is over what is summed:
//
//                          alone                           with ParallelGroups
//   loss weights           the pipeline's ends             losses: {both ends} x DP
//   mean loss              the pipeline                    losses, then along each pipeline
//   gradients              mirrors, tied weights           the parameter's group: {s, P-1-s} x DP, tied weights' ranks
//   norm, equal copies     the pipeline                    world, each part of a parameter once
//   rank in failures       of the pipeline                 of world
//
// The global batch is that of all replicas, so gradients are not divided by DP afterwards. Sums start in buckets of
// gradient_bucket_bytes at the last W of their stage, behind the rest of the schedule, and copies are equal to the bit.
// With shard_gradients a rank's gradients hold the sum in its part (Pipeline::gradient_parts()) and zeros elsewhere,
// for an optimizer that works on parts (plugin/runtime/distributed_optimizer.h). `failures` is one channel for all
// replicas; without it a replica learns of another's failure by the timeout of a collective.
//
// Failure. A caller's mistake at construction throws ScheduleError on every rank before the first message (on NCCL,
// whose groups are made first, on the rank that made it). In a step, the first exception on a rank ends the pipeline:
// it is recorded in PipelineOptions::failures, by which the others are told, and PipelineError is thrown, nested around
// the original. Afterwards every call throws; destroy the pipeline and its group.
//
// Copies of a parameter on several ranks (mirrors, tied weights) have to be equal before the first step(), which
// compares them, over all replicas, and refuses where they differ.
//
// A Pipeline is used by one thread. It outlives nothing: group, modules and main_grads are kept alive by it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/criterion.h"
#include "plugin/runtime/failure.h"
#include "plugin/runtime/gradient_norm.h"
#include "plugin/runtime/gradients.h"
#include "plugin/runtime/non_finite.h"
#include "plugin/runtime/parallel_groups.h"
#include "plugin/runtime/ring_log.h"
#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/statistics.h"
#include "plugin/runtime/tensor_list.h"
#include "plugin/runtime/transport.h"
#include "plugin/schedule/merge.h"
#include "plugin/schedule/registry.h"

namespace dualpipe {

struct ReplicaLayout;  // plugin/runtime/replica_layout.h

struct PipelineOptions {
  int num_microbatches = 0;                           // M per step, over both directions. Required.
  int virtual_pipeline_model_parallel_size = 2;       // Chunks per rank; read by interleaved_1f1b alone.
  bool variable_seq_lengths = false;                  // Shapes may differ between micro-batches and steps.
  bool reduce_mirrors = true;                         // False: each mirror keeps its own half of the gradient.
  ParallelGroups parallel = {};                       // The host's data, tensor and expert parallelism.
  std::int64_t gradient_bucket_bytes = 25 << 20;      // What one collective of parallel.gradients carries at most.
  bool shard_gradients = false;                       // Each member gets the sums of its own part; see below.
  bool overlap_phases = true;                         // False: pairs run in sequence, phase by phase.
  bool defer_tail_weight_gradients = false;           // The closing run of W is left to finish_gradients().
  bool mean_loss_on_every_rank = false;               // A collective at the end of each step.
  int slots = 2;                                      // Receives posted ahead per directed edge; see least_slots().
  std::chrono::milliseconds timeout{30 * 60 * 1000};  // Of one wait.
  int nccl_max_ctas = 0;                              // CTAs of one edge's kernels; 0 leaves it to NCCL.
  // fp32 buffers by logical name that gradients are added to instead of `.grad`.
  std::map<std::string, at::Tensor> main_grads = {};
  // Bytes that count as live activations, by the host's own measure; empty: unknown. Asked at the end of every compute
  // action, for StepStatistics::memory, so it should take a microsecond rather than more.
  std::function<std::int64_t()> live_bytes = {};
  // Where ranks tell each other of failures; null: ranks notice by their connections alone. A watchdog thread looks at
  // it and, when a rank has failed, calls on_fatal (once, from its own thread or from that of the failing call), or
  // wakes this rank with an error where there is none.
  std::shared_ptr<FailureChannel> failures = {};
  std::function<void(const FailureRecord&)> on_fatal = {};
  // Gets this rank's last actions and messages; may be read from any thread. Null: the pipeline makes one of its own.
  std::shared_ptr<RingLog> ring_log = {};
  // On failure the ring log is written into this folder, which is there; empty: it is not.
  std::string ring_log_folder = {};
  // Look at what crosses stages and at gradients before they are summed, for find_non_finite(): a pass over each.
  bool check_finite = false;
  Registry registry = builtin_registry();  // Add your own schedules here.
};

struct StepResult {
  std::vector<at::Tensor> losses;   // Mean loss of each of loss_micro_batches(), detached scalars; empty elsewhere.
  std::optional<double> mean_loss;  // Of the global batch, with mean_loss_on_every_rank; never a made-up value.
  MicroBatches outputs;             // Of each of loss_micro_batches(), detached; where asked for.
  StepStatistics statistics;
};

class Pipeline {
 public:
  // `schedule` is a registered name or a CSV file. Collective over the group.
  Pipeline(const std::string& schedule, c10::intrusive_ptr<c10d::ProcessGroup> group,
           std::vector<std::shared_ptr<StageModule>> stages, PipelineOptions options);
  // The same over any transport.
  Pipeline(const std::string& schedule, std::shared_ptr<Transport> transport,
           std::vector<std::shared_ptr<StageModule>> stages, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // One training step. Whole batches are split along dimension 0 over input_micro_batches() and loss_micro_batches().
  // Inputs that require grad (an encoder outside the pipeline) receive their gradient.
  StepResult step(const TensorList& inputs, const TensorList& labels, const Criterion& criterion,
                  bool return_outputs = false);
  // Micro-batch by micro-batch: entry i belongs to input_micro_batches()[i], loss_micro_batches()[i].
  StepResult step(const MicroBatches& inputs, const MicroBatches& labels, const Criterion& criterion,
                  bool return_outputs = false);
  // Forward only: no graph, no gradients. Without a criterion there are no losses; it is given on every rank that
  // computes losses or on none. Refused between a step() and its finish_gradients().
  StepResult evaluate(const TensorList& inputs, const TensorList& labels = {},
                      const std::optional<Criterion>& criterion = std::nullopt, bool return_outputs = true);
  StepResult evaluate(const MicroBatches& inputs, const MicroBatches& labels,
                      const std::optional<Criterion>& criterion = std::nullopt, bool return_outputs = true);

  // Runs the W that were put off, finishes reductions. Nothing to do unless defer_tail_weight_gradients is set.
  void finish_gradients();

  int rank() const;
  int size() const;
  const std::string& schedule() const;
  int num_microbatches() const;
  int num_stages() const;                        // Of the whole pipeline.
  std::vector<int> stages() const;               // Of this rank, in module order.
  std::vector<int> input_micro_batches() const;  // Ascending.
  std::vector<int> loss_micro_batches() const;   // Ascending.

  bool reduces_mirrors() const;  // False only where the placement has mirrors that keep their halves.
  // Of the last step; with defer_tail_weight_gradients complete after finish_gradients().
  const StepStatistics& statistics() const;

  // What interleaves the phases of this rank's pairs, by (stage of the forward, stage of the backward).
  const std::map<std::pair<int, int>, PairProgram>& pair_programs() const;

  const std::vector<StageParameter>& parameters() const;
  const Gradients& gradients() const;
  std::shared_ptr<Transport> transport() const;
  // Over PipelineOptions::parallel: all ranks that hold a part of the model, and how gradients are divided (null
  // without parallel.gradients; empty unless shard_gradients is set).
  std::shared_ptr<Collectives> world() const;
  std::shared_ptr<const ReplicaLayout> replica_layout() const;
  const std::vector<GradientPart>& gradient_parts() const;
  // Collective: where the last training step first went wrong, the same on every rank: of what entered and left stages
  // (with check_finite), else of the gradients. Nothing where all of it is finite. After the gradients are final.
  std::optional<NonFinite> find_non_finite();
  const RingLog& ring_log() const;
  // What the weight-gradient store still holds: "" or "stage 0: micro-batches 2, 3 (1024 bytes)".
  std::string pending_weight_gradients() const;
  // Runs `body` on the failure path: recorded, told to the others, thrown as PipelineError.
  void guarded(const std::string& action, const std::function<void()>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dualpipe
