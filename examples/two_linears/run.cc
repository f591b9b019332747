#include "examples/two_linears/run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "examples/two_linears/launch.h"
#include "examples/two_linears/stage.h"
#include "plugin/runtime/dualpipe.h"
#include "plugin/schedule/registry.h"

namespace two_linears {
namespace {

constexpr int kWidth = 16;
constexpr int kRows = 4;  // Of a micro-batch.
constexpr double kTolerance = 1e-10;

const dualpipe::Criterion& mean_square() {
  static const dualpipe::Criterion criterion(
      [](const dualpipe::TensorList& outputs, const dualpipe::TensorList& labels) {
        return (outputs.at(0) - labels.at(0)).square().mean();
      });
  return criterion;
}

// All micro-batches of the global batch, the same in every process.
dualpipe::MicroBatches random_batch(int num_microbatches, int seed) {
  at::manual_seed(seed);
  dualpipe::MicroBatches batch;
  for (int k = 0; k < num_microbatches; ++k) batch.push_back({at::randn({kRows, kWidth}, at::kDouble)});
  return batch;
}

dualpipe::MicroBatches select(const dualpipe::MicroBatches& all, const std::vector<int>& mine) {
  dualpipe::MicroBatches chosen;
  for (int k : mine) chosen.push_back(all.at(k));
  return chosen;
}

// Plain autograd, all stages in this process. Leaves gradients in the stages and returns the outputs.
std::vector<at::Tensor> run_whole(std::vector<std::shared_ptr<Stage>>& stages, const dualpipe::MicroBatches& inputs,
                                  const dualpipe::MicroBatches& labels, std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> outputs;
  at::Tensor total = at::zeros({}, at::kDouble);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    dualpipe::TensorList values = inputs[k];
    for (const auto& stage : stages) values = stage->forward(values);
    losses.push_back(mean_square().loss(values, labels[k]));
    total = total + losses.back() / static_cast<double>(inputs.size());
    outputs.push_back(values[0]);
  }
  total.backward();
  return outputs;
}

double difference(const at::Tensor& given, const at::Tensor& wanted) {
  return ((given - wanted).norm() / wanted.norm()).item<double>();
}

double worst_gradient(const Stage& given, const Stage& wanted) {
  double worst = 0;
  const auto expected = wanted.named_parameters();
  for (const auto& item : given.named_parameters()) {
    worst = std::max(worst, difference(item.value().grad(), expected[item.key()].grad()));
  }
  return worst;
}

int run(const std::string& schedule, int num_microbatches) {
  const auto group = process_group();
  const dualpipe::Placement placement =
      dualpipe::builtin_registry().make(schedule, {group->getSize(), num_microbatches}).placement;

  std::vector<std::shared_ptr<dualpipe::StageModule>> modules;
  for (int stage : placement.stages_of(group->getRank())) modules.push_back(make_stage(stage, kWidth));
  dualpipe::Pipeline pipeline(schedule, group, modules, {.num_microbatches = num_microbatches});

  const dualpipe::MicroBatches inputs = random_batch(num_microbatches, 1);
  const dualpipe::MicroBatches labels = random_batch(num_microbatches, 2);
  const dualpipe::StepResult trained = pipeline.step(select(inputs, pipeline.input_micro_batches()),
                                                     select(labels, pipeline.loss_micro_batches()), mean_square());
  const dualpipe::StepResult inferred =
      pipeline.evaluate(select(inputs, pipeline.input_micro_batches()), dualpipe::MicroBatches(trained.losses.size()));

  std::vector<std::shared_ptr<Stage>> whole;
  for (int stage = 0; stage < placement.stages(); ++stage) whole.push_back(make_stage(stage, kWidth));
  std::vector<at::Tensor> losses;
  const std::vector<at::Tensor> outputs = run_whole(whole, inputs, labels, losses);

  double loss = 0;
  double output = 0;
  double gradient = 0;
  const std::vector<int> mine = pipeline.loss_micro_batches();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    loss = std::max(loss, difference(trained.losses[i], losses[mine[i]]));
    output = std::max(output, difference(inferred.outputs[i][0], outputs[mine[i]]));
  }
  const std::vector<int> stages = pipeline.stages();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    gradient = std::max(gradient, worst_gradient(static_cast<const Stage&>(*modules[i]), *whole[stages[i]]));
  }
  const bool passed = std::max({loss, output, gradient}) <= kTolerance;
  fmt::print(
      "{} rank {}: {} losses within {:.1e}, {} inferred outputs within {:.1e}, every gradient within {:.1e} of one "
      "process; {}: {}\n",
      schedule, pipeline.rank(), mine.size(), loss, mine.size(), output, gradient, trained.statistics.overlap_summary(),
      passed ? "passed" : "FAILED");
  return passed ? 0 : 1;
}

}  // namespace

int run_example(const std::string& schedule, int num_microbatches) {
  try {
    return run(schedule, num_microbatches);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace two_linears
