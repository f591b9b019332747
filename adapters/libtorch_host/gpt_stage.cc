#include "adapters/libtorch_host/gpt_stage.h"

#include <string_view>
#include <utility>

#include "examples/pretrain_gpt/model/token_loss.h"

namespace dualpipe::libtorch_host {
namespace {

constexpr std::string_view kChild = "chunk";

}  // namespace

GptStage::GptStage(std::shared_ptr<pretrain_gpt::GptChunk> chunk)
    : chunk_(register_module(std::string(kChild), std::move(chunk))) {}

TensorList GptStage::forward(const TensorList& inputs) { return {chunk_->forward(inputs.at(0))}; }

std::string GptStage::logical_name(int, const std::string& local_name) const {
  return local_name.substr(kChild.size() + 1);
}

Criterion gpt_criterion() {
  return Criterion::sum(
      [](const TensorList& outputs, const TensorList& labels) {
        return pretrain_gpt::token_loss_sum(outputs.at(0), labels.at(0), labels.at(1));
      },
      [](const TensorList& labels) { return pretrain_gpt::token_loss_weight(labels.at(1)); });
}

}  // namespace dualpipe::libtorch_host
