#include "tests/bench/overlap/case.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "plugin/analysis/simulate_pair.h"
#include "tests/bench/overlap/calibrate.h"

namespace dualpipe::bench {
namespace {

// Per layer and pair: F, I and W of two computes; both ways of two exchanges.
constexpr int kComputes = 6;
constexpr int kExchanges = 4;

std::vector<std::shared_ptr<StageModule>> make_stages(std::size_t count, const StageCosts& costs, bool phased,
                                                      ExpertGroup& experts, Sleeper& sleeper) {
  std::vector<std::shared_ptr<StageModule>> stages;
  while (stages.size() < count) stages.push_back(std::make_shared<MoeStage>(costs, phased, experts, sleeper));
  return stages;
}

}  // namespace

Sleeper sleeper_of(const Settings& settings) {
  const Milliseconds time(settings.compute_ms);
  return {.pace = {.forward = time, .backward_input = time, .backward_weight = time}, .overshoot = {}};
}

StageCosts costs_of(const Settings& settings, double ratio, ExpertGroup& experts, Ranks& ranks) {
  const StageCosts costs{.layers = settings.layers, .compute_ms = settings.compute_ms};
  const Milliseconds wanted(ratio * settings.compute_ms * kComputes / kExchanges);
  return calibrate(costs, wanted, settings.megabits_per_second, experts, ranks);
}

StageCost ideal_cost(const StageCosts& costs) {
  const double compute = 2 * costs.layers * costs.compute_ms;
  const double exchange = 2 * costs.layers * costs.exchange_ms;
  const Phases phases = phase_specs(costs);
  return {.forward = compute + exchange,
          .backward_input = compute + exchange,
          .backward_weight = compute,
          .overlapped = simulate(merge(phases, phases)).makespan};
}

nlohmann::json describe(const StageCosts& costs, double ratio) {
  return {{"ratio", ratio},
          {"bytes_each_way", costs.values * sizeof(float)},
          {"exchange_ms", costs.exchange_ms},
          {"compute_ms", costs.layers * kComputes * costs.compute_ms},
          {"all_to_all_ms", costs.layers * kExchanges * costs.exchange_ms}};
}

BenchPipeline::BenchPipeline(const std::string& schedule, std::shared_ptr<Transport> transport, const StageCosts& costs,
                             bool phased, int num_microbatches, ExpertGroup& experts, Sleeper& sleeper)
    : tokens_(costs.values / kCopies) {
  const Placement placement = builtin_registry().make(schedule, {transport->size(), num_microbatches}).placement;
  const std::size_t stages = placement.stages_of(transport->rank()).size();
  pipeline_ = std::make_unique<Pipeline>(schedule, transport, make_stages(stages, costs, phased, experts, sleeper),
                                         PipelineOptions{.num_microbatches = num_microbatches});
}

StepResult BenchPipeline::step() {
  const auto sum = [](const TensorList& outputs, const TensorList&) { return outputs[0].sum(); };
  MicroBatches inputs, labels;
  // Inputs that train: the first stage has an I like the others.
  for (int k : pipeline_->input_micro_batches()) inputs.push_back({at::zeros({tokens_}).requires_grad_(k >= 0)});
  labels.resize(pipeline_->loss_micro_batches().size());
  return pipeline_->step(inputs, labels, Criterion(sum));
}

}  // namespace dualpipe::bench
