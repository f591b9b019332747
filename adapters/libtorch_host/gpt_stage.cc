#include "adapters/libtorch_host/gpt_stage.h"

#include <optional>
#include <string_view>
#include <utility>

#include "examples/pretrain_gpt/model/token_loss.h"

namespace dualpipe::libtorch_host {
namespace {

constexpr std::string_view kChild = "chunk";

class Exchange : public PendingExchange {
 public:
  explicit Exchange(std::unique_ptr<pretrain_gpt::PendingTensors> tensors) : tensors_(std::move(tensors)) {}
  TensorList wait() override { return tensors_->wait(); }

 private:
  std::unique_ptr<pretrain_gpt::PendingTensors> tensors_;
};

// The trainer's state of a micro-batch in a phase, kept in the plugin's.
pretrain_gpt::PhaseState& state_of(PhaseContext& context, const MicroBatchCount& count) {
  if (!context.saved.has_value()) context.saved = pretrain_gpt::PhaseState{count.of_step(context.micro_batch), {}};
  return std::any_cast<pretrain_gpt::PhaseState&>(context.saved);
}

PhaseSpec spec_of(const pretrain_gpt::ModelPhase& phase) {
  const bool computes = static_cast<bool>(phase.compute);
  return {phase.name,
          computes ? PhaseKind::kCompute : PhaseKind::kCommunication,
          phase.forward,
          phase.backward_input,
          computes ? phase.backward_weight : 0,
          computes || phase.exchange_back};
}

std::optional<TensorForms> forms_of(const std::optional<std::vector<pretrain_gpt::TensorForm>>& given) {
  if (!given) return std::nullopt;
  TensorForms forms;
  for (const pretrain_gpt::TensorForm& form : *given) forms.push_back({form.dtype, form.sizes});
  return forms;
}

Phase phase_of(pretrain_gpt::ModelPhase given, const MicroBatchCount& count) {
  Phase phase;
  phase.spec = spec_of(given);
  phase.recompute = given.recompute;
  phase.takes = forms_of(given.takes);
  phase.gives = forms_of(given.gives);
  if (given.compute) {
    phase.compute = [run = std::move(given.compute), count](const TensorList& inputs, PhaseContext& context) {
      return run(inputs, state_of(context, count));
    };
  }
  const auto exchange = [&count](auto run) {
    return [run = std::move(run), count](const TensorList& tensors,
                                         PhaseContext& context) -> std::unique_ptr<PendingExchange> {
      return std::make_unique<Exchange>(run(tensors, state_of(context, count)));
    };
  };
  if (given.exchange) phase.exchange = exchange(std::move(given.exchange));
  if (given.exchange_back) phase.exchange_back = exchange(std::move(given.exchange_back));
  return phase;
}

}  // namespace

GptStage::GptStage(std::shared_ptr<pretrain_gpt::GptChunk> chunk, const MicroBatchCount& count, bool by_phases)
    : chunk_(register_module(std::string(kChild), std::move(chunk))), count_(count), by_phases_(by_phases) {}

TensorList GptStage::forward(const TensorList& inputs) { return {chunk_->forward(inputs.at(0), micro_batch_)}; }

std::vector<Phase> GptStage::phases() {
  std::vector<Phase> phases;
  if (!by_phases_) return phases;
  for (pretrain_gpt::ModelPhase& phase : chunk_->phases()) phases.push_back(phase_of(std::move(phase), count_));
  return phases;
}

std::string GptStage::logical_name(int, const std::string& local_name) const {
  return local_name.substr(kChild.size() + 1);
}

Criterion gpt_criterion(const pretrain_gpt::LayerGroup& tensor) {
  return Criterion::sum(
      [tensor](const TensorList& outputs, const TensorList& labels) {
        return pretrain_gpt::token_loss_sum(outputs.at(0), labels.at(0), labels.at(1), tensor);
      },
      [](const TensorList& labels) { return pretrain_gpt::token_loss_weight(labels.at(1)); });
}

}  // namespace dualpipe::libtorch_host
