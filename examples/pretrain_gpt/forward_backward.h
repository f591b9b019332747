// examples/pretrain_gpt/forward_backward.h
//
// The trainer's interface to a pipeline schedule: what a schedule gets, and what it has to do each step.
//
// Calls are collective: every rank of the run makes the same ones in the same order.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/data/micro_batch.h"
#include "examples/pretrain_gpt/failures/activity.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/parallel/groups.h"
#include "examples/pretrain_gpt/rank_parameters.h"
#include "examples/pretrain_gpt/step_trace.h"
#include "examples/pretrain_gpt/tensor_memory.h"

namespace pretrain_gpt {

// Valid as long as the schedule that was made from it. All ranks agree about the configuration by then.
struct TrainContext {
  const Config& config;           // Resolved: pipeline_size() and num_microbatches() say how much there is to do.
  const ProcessGroups& parallel;  // Of the whole run; this rank's place in it.
  c10::intrusive_ptr<c10d::Store> store;  // This thread's client, under a prefix of its own; of all ranks of the run.
  std::filesystem::path output_dir;       // Exists.

  // The pipeline that this rank is part of: micro-batches are counted and messages go between its ranks.
  int rank = parallel.pipeline()->getRank();
  int world_size = parallel.pipeline()->getSize();
  c10::intrusive_ptr<c10d::ProcessGroup> group = parallel.pipeline();  // Gloo; there with one rank too.

  std::shared_ptr<const TensorMemory> memory = {};  // What tensors of this process take; null: nobody counts.

  // Runs a chunk's forward ('F') or backward ('B'). Empty: calls it. A benchmark's takes a fixed time for each.
  std::function<void(char kind, const std::function<void()>& compute)> run = {};
};

struct StepOutcome {
  double grad_norm = 0;  // Of all gradients of the model together, before clipping; the same on every rank.
  bool skipped = false;  // Loss or norm were not finite, or the caller said so; no rank changed its weights.
  // Of a step that was not finite: where that began, "rank 2, stage 2, micro-batch 3: an output". The same on every
  // rank; nothing where no rank knows.
  std::optional<std::string> first_bad = {};
};

class ForwardBackward {
 public:
  virtual ~ForwardBackward() = default;

  // Forward and backward of all micro-batches of a step. Adds to the gradients of chunks(), so that after the call (or
  // after optimizer_step(), where work is left to it) they have the gradient of the mean loss over the valid tokens of
  // the global batch. Returns that loss, on every rank.
  virtual double train_step(const ReadMicroBatch& read) = 0;

  // The mean loss alone; builds no graph and leaves gradients as they are.
  virtual double evaluate(const ReadMicroBatch& read) = 0;

  // Finishes the gradients, clips them to `clip_grad` (0: not at all) by their global norm, and steps; skips the step
  // everywhere if the norm is not finite, or `skip` (the same on every rank) says so: then parameters and the
  // optimizer's state are what they were.
  virtual StepOutcome optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad, bool skip = false) = 0;

  // This rank's part of the model, in stage order. Owned by the schedule.
  virtual std::vector<GptChunk*> chunks() = 0;

  // By logical name: the buffers that gradients add up in, where that is not `.grad`. To be zeroed by the caller.
  virtual NamedTensors main_gradients() const { return {}; }

  // By chunk: its micro-batches between forward and backward at the moment when the rank has most of them. Empty where
  // the schedule does not know.
  virtual std::vector<std::int64_t> peak_micro_batches() const { return {}; }

  // With record_actions: the compute actions of the last step as this rank ran them, in the text form's cells,
  // separated by commas ("0F0,0F1,0B0").
  virtual std::optional<std::string> recorded_actions() const { return std::nullopt; }

  // With record_timeline: the last training step as this rank ran it, after its optimizer_step(). Nothing where the
  // schedule does not know.
  virtual std::optional<StepTrace> trace() const { return std::nullopt; }

  // What this rank is doing and did last; owned by the schedule, may be asked from any thread. Null where it does not
  // tell.
  virtual const ActivityLog* activity() const { return nullptr; }

  // What a user should know at the end of a run, a line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace pretrain_gpt
