// adapters/libtorch_host/gpt_stage.h
//
// A chunk of the trainer's model as a stage of the plugin.
#pragma once

#include <memory>
#include <string>

#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "plugin/runtime/criterion.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe::libtorch_host {

class GptStage : public StageModule {
 public:
  explicit GptStage(std::shared_ptr<pretrain_gpt::GptChunk> chunk);

  // {tokens or hidden states} -> {hidden states or logits}
  TensorList forward(const TensorList& inputs) override;
  // The trainer's own names, which do not depend on the division of layers.
  std::string logical_name(int stage, const std::string& local_name) const override;

  pretrain_gpt::GptChunk& chunk() { return *chunk_; }

 private:
  std::shared_ptr<pretrain_gpt::GptChunk> chunk_;
};

// Outputs {logits}, labels {labels, loss mask}: the trainer's token loss as a sum, weighted by valid tokens.
Criterion gpt_criterion();

}  // namespace dualpipe::libtorch_host
