// examples/pretrain_gpt/checkpoint/held_state.h
//
// What a rank holds of the model and of the optimizer's state, by logical name and place in the whole tensor: what a
// save reads and a load fills in.
//
//   layers.0.mlp.down.weight                            the parameter
//   layers.0.mlp.router.expert_bias                     a buffer: the state of expert balancing
//   optimizer.state.exp_avg.layers.0.mlp.down.weight    first moment; exp_avg_sq: second
//   optimizer.state.fp32_param.layers.0...              master weight of a bfloat16 parameter
//   optimizer.state.step.layers.0...                    steps that were taken, I64 []
#pragma once

#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/save_plan.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/optimizer_state.h"
#include "examples/pretrain_gpt/parallel/groups.h"
#include "examples/pretrain_gpt/rank_parameters.h"

namespace pretrain_gpt {

struct HeldPiece {
  HeldBox place;
  at::Tensor view;       // [place.box.size], in the model's or optimizer's own memory.
  bool is_weight;        // A parameter, its master, or a buffer: what finetuning takes.
  bool is_copy = false;  // A master that is the parameter's value once more: loaded from it, never saved.
};

class HeldState {
 public:
  // Of `chunks` and `optimizer`, which outlive this. Makes optimizer state that there is none of yet.
  HeldState(const std::vector<GptChunk*>& chunks, torch::optim::Optimizer& optimizer, const ProcessGroups& groups);

  const std::vector<HeldPiece>& pieces() const { return pieces_; }

  // Numbers of steps are no tensors: from the optimizer before a save, and to it after a load. The latter throws
  // CheckpointError where parameters that are stepped together would have taken different numbers of steps.
  void take_steps();
  void give_steps();

 private:
  struct Steps {
    std::string name;  // Of the parameter.
    torch::optim::AdamWParamState* adamw;
    at::Tensor count;  // int64 [], a piece's view.
  };

  void add_parameter(const RankParameter& parameter, const ProcessGroups& groups);
  void add_state(const RankParameter& parameter, const ParameterState& state, const ProcessGroups& groups);
  void add_buffers(const GptChunk& chunk, const ProcessGroups& groups);

  std::vector<HeldPiece> pieces_;
  std::vector<Steps> steps_;
};

// "F32" of at::kFloat. Throws CheckpointError for dtypes that the trainer has not.
std::string dtype_name(at::ScalarType dtype);

}  // namespace pretrain_gpt
