// examples/pretrain_gpt/forward_backward.h
//
// The trainer's interface to a pipeline schedule: what a schedule gets, and what it has to do each step.
//
// Calls are collective: every rank of the pipeline makes the same ones in the same order.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/data/micro_batch.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"

namespace pretrain_gpt {

// Valid as long as the schedule that was made from it. All ranks agree about the configuration by then.
struct TrainContext {
  const Config& config;  // Resolved: pipeline_size() and num_microbatches() say how much there is to do.
  int rank = 0;          // In the pipeline.
  int world_size = 1;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // Gloo, of all ranks; there with one process too.
  c10::intrusive_ptr<c10d::Store> store;         // This thread's client, under a prefix of its own.
  std::filesystem::path output_dir;              // Exists.
};

struct StepOutcome {
  double grad_norm = 0;  // Of all gradients of the model together, before clipping; the same on every rank.
  bool skipped = false;  // The norm was not finite, and no rank changed its weights.
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
  // everywhere if the norm is not finite.
  virtual StepOutcome optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad) = 0;

  // This rank's part of the model, in stage order. Owned by the schedule.
  virtual std::vector<GptChunk*> chunks() = 0;

  // With record_actions: the compute actions of the last step as this rank ran them, in the text form's cells,
  // separated by commas ("0F0,0F1,0B0").
  virtual std::optional<std::string> recorded_actions() const { return std::nullopt; }

  // What a user should know at the end of a run, a line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace pretrain_gpt
