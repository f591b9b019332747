#include "tests/bench/overlap/moe_stage.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dualpipe::bench {
namespace {

using torch::autograd::AutogradContext;

at::Tensor copies_of(const at::Tensor& tokens) { return tokens.repeat({kCopies}); }
at::Tensor sum_of_copies(const at::Tensor& copies) { return copies.view({kCopies, -1}).sum(0); }

std::unique_ptr<PendingExchange> start_dispatch(ExpertGroup& experts, const at::Tensor& tokens) {
  return experts.start(copies_of(tokens));
}
std::unique_ptr<PendingExchange> start_combine(ExpertGroup& experts, const at::Tensor& copies) {
  return experts.start(copies, sum_of_copies);
}

// The gradient of a copy is that of its token, and the other way round, so each is the other's way back.
template <auto Start, auto StartBack>
struct AwaitedExchange : torch::autograd::Function<AwaitedExchange<Start, StartBack>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, ExpertGroup* experts) {
    context->saved_data["experts"] = reinterpret_cast<std::int64_t>(experts);
    return Start(*experts, input)->wait()[0];
  }
  static TensorList backward(AutogradContext* context, const TensorList& grads) {
    auto* experts = reinterpret_cast<ExpertGroup*>(context->saved_data["experts"].toInt());
    return {StartBack(*experts, grads[0])->wait()[0], at::Tensor()};
  }
};
using AwaitedDispatch = AwaitedExchange<start_dispatch, start_combine>;
using AwaitedCombine = AwaitedExchange<start_combine, start_dispatch>;

// Its wait() also says that the result carries a gradient.
class Differentiable : public PendingExchange {
 public:
  explicit Differentiable(std::unique_ptr<PendingExchange> exchange) : exchange_(std::move(exchange)) {}
  TensorList wait() override { return {exchange_->wait()[0].requires_grad_(true)}; }

 private:
  std::unique_ptr<PendingExchange> exchange_;
};

template <auto Start, auto StartBack>
Phase exchange_phase(PhaseSpec spec, ExpertGroup& experts) {
  return {.spec = std::move(spec),
          .exchange = [&experts](const TensorList& inputs, PhaseContext&) -> std::unique_ptr<PendingExchange> {
            return std::make_unique<Differentiable>(Start(experts, inputs[0]));
          },
          .exchange_back = [&experts](const TensorList& grads, PhaseContext&) -> std::unique_ptr<PendingExchange> {
            return StartBack(experts, grads[0]);
          }};
}

}  // namespace

Phases phase_specs(const StageCosts& costs) {
  const auto compute = [&](int layer, const char* name) {
    return PhaseSpec{.name = fmt::format("{}.{}", layer, name),
                     .kind = PhaseKind::kCompute,
                     .forward = costs.compute_ms,
                     .backward_input = costs.compute_ms,
                     .backward_weight = costs.compute_ms};
  };
  const auto exchange = [&](int layer, const char* name) {
    return PhaseSpec{.name = fmt::format("{}.{}", layer, name),
                     .kind = PhaseKind::kCommunication,
                     .forward = costs.exchange_ms,
                     .backward_input = costs.exchange_ms,
                     .backward_weight = 0};
  };
  Phases phases;
  for (int layer = 0; layer < costs.layers; ++layer) {
    phases.push_back(compute(layer, "attention"));
    phases.push_back(exchange(layer, "dispatch"));
    phases.push_back(compute(layer, "mlp"));
    phases.push_back(exchange(layer, "combine"));
  }
  return phases;
}

MoeStage::MoeStage(const StageCosts& costs, bool phased, ExpertGroup& experts, Sleeper& sleeper)
    : costs_(costs), phased_(phased), experts_(experts), sleeper_(sleeper) {
  for (int i = 0; i < 2 * costs.layers; ++i) {
    weights_.push_back(register_parameter(fmt::format("weight{}", i), at::zeros({})));
  }
}

at::Tensor MoeStage::compute(std::size_t index, const at::Tensor& input) {
  return sleeping_layer(input, weights_[index], sleeper_);
}

TensorList MoeStage::forward(const TensorList& inputs) {
  at::Tensor values = inputs.at(0);
  for (std::size_t i = 0; i < weights_.size(); i += 2) {
    values = AwaitedDispatch::apply(compute(i, values), &experts_);
    values = AwaitedCombine::apply(compute(i + 1, values), &experts_);
  }
  return {values};
}

std::vector<Phase> MoeStage::phases() {
  if (!phased_) return {};
  std::vector<Phase> phases;
  const Phases specs = phase_specs(costs_);
  const auto add_compute = [&](std::size_t index) {
    phases.push_back({.spec = specs[phases.size()], .compute = [this, index](const TensorList& inputs, PhaseContext&) {
                        return TensorList{compute(index, inputs[0])};
                      }});
  };
  for (std::size_t i = 0; i < weights_.size(); i += 2) {
    add_compute(i);
    phases.push_back(exchange_phase<start_dispatch, start_combine>(specs[phases.size()], experts_));
    add_compute(i + 1);
    phases.push_back(exchange_phase<start_combine, start_dispatch>(specs[phases.size()], experts_));
  }
  return phases;
}

}  // namespace dualpipe::bench
