// adapters/libtorch_host/gpt_stage.h
//
// A chunk of the trainer's model as a stage of the plugin, with its phases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "plugin/runtime/criterion.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe::libtorch_host {

// The trainer counts micro-batches over all data-parallel ranks, whose turns alternate; the plugin those of one
// pipeline.
struct MicroBatchCount {
  std::int64_t data_rank = 0;
  std::int64_t data_size = 1;
  std::int64_t of_step(int micro_batch) const { return micro_batch * data_size + data_rank; }
};

class GptStage : public StageModule {
 public:
  // `by_phases`: training runs the chunk's phases instead of its forward().
  GptStage(std::shared_ptr<pretrain_gpt::GptChunk> chunk, const MicroBatchCount& count, bool by_phases);

  // {tokens or hidden states} -> {hidden states or logits}
  TensorList forward(const TensorList& inputs) override;
  void begin_micro_batch(int micro_batch) override { micro_batch_ = count_.of_step(micro_batch); }
  std::vector<Phase> phases() override;
  // The trainer's own names, which do not depend on the division of layers.
  std::string logical_name(int stage, const std::string& local_name) const override;

  pretrain_gpt::GptChunk& chunk() { return *chunk_; }
  const pretrain_gpt::GptChunk& chunk() const { return *chunk_; }

 private:
  std::shared_ptr<pretrain_gpt::GptChunk> chunk_;
  MicroBatchCount count_;
  bool by_phases_;
  std::int64_t micro_batch_ = 0;
};

// Outputs {logits}, labels {labels, loss mask}: the trainer's token loss as a sum, weighted by valid tokens. Logits are
// this rank's part of the vocabulary where `tensor` divides it.
Criterion gpt_criterion(const pretrain_gpt::LayerGroup& tensor);

}  // namespace dualpipe::libtorch_host
