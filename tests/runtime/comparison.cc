#include "tests/runtime/comparison.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "plugin/schedule/registry.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

Schedule schedule_of(const Comparison& comparison) {
  return comparison.options.registry.make(
      comparison.schedule,
      {comparison.ranks, comparison.options.num_microbatches, comparison.options.virtual_pipeline_model_parallel_size});
}

at::Tensor normal(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

class ParametersStage final : public torch::nn::Module {
 public:
  explicit ParametersStage(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
    for (const auto& [name, parameter] : parameters) {
      if (!parameters_.contains(parameter.unsafeGetTensorImpl())) {
        register_parameter(name, parameter, parameter.requires_grad());
      }
      parameters_.insert(parameter.unsafeGetTensorImpl());
    }
  }

 private:
  std::set<at::TensorImpl*> parameters_;
};

void compare_gradients(const StageModule& given, const StageModule& wanted, int stage, double tolerance) {
  const auto expected = wanted.named_parameters();
  for (const auto& item : given.named_parameters()) {
    expect_close(item.value().grad(), expected[item.key()].grad(), tolerance,
                 fmt::format("gradient of {} in stage {}", item.key(), stage));
  }
}

void compare_results(const Comparison& comparison, const Pipeline& pipeline, const StepResult& result,
                     const WholeModelResult& wanted) {
  const std::vector<int> mine = pipeline.loss_micro_batches();
  ASSERT_EQ(result.losses.size(), mine.size());
  ASSERT_EQ(result.outputs.size(), mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const int k = mine[i];
    expect_close(result.losses[i], wanted.losses[k], comparison.tolerance, fmt::format("loss of micro-batch {}", k));
    EXPECT_FALSE(result.losses[i].requires_grad());
    ASSERT_EQ(result.outputs[i].size(), wanted.outputs[k].size());
    for (std::size_t t = 0; t < result.outputs[i].size(); ++t) {
      expect_close(result.outputs[i][t], wanted.outputs[k][t], comparison.tolerance,
                   fmt::format("output {} of micro-batch {}", t, k));
      EXPECT_FALSE(result.outputs[i][t].requires_grad());
    }
  }
}

}  // namespace

Criterion Comparison::mean_square() {
  return Criterion([](const TensorList& outputs, const TensorList& labels) {
    return (outputs.at(0) - labels.at(0)).square().mean();
  });
}

const std::vector<std::string>& all_schedules() {
  static const std::vector<std::string> names{"1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"};
  return names;
}

Comparison mlp_comparison(const std::string& schedule, int ranks, int num_microbatches) {
  Comparison comparison;
  comparison.schedule = schedule;
  comparison.ranks = ranks;
  comparison.options.num_microbatches = num_microbatches;
  comparison.make = [](int stage, int) { return mlp_stage(stage); };
  comparison.inputs = random_micro_batches(num_microbatches, {4, 8}, 3);
  comparison.labels = random_micro_batches(num_microbatches, {4, 8}, 4);
  return comparison;
}

StepResult train_once(const Comparison& comparison, Pipeline& pipeline) {
  return pipeline.step(select(comparison.inputs, pipeline.input_micro_batches()),
                       select(comparison.labels, pipeline.loss_micro_batches()), comparison.criterion);
}

int stages_of(const Comparison& comparison) { return schedule_of(comparison).placement.stages(); }

std::vector<std::shared_ptr<StageModule>> all_stages(const Comparison& comparison) {
  std::vector<std::shared_ptr<StageModule>> stages;
  const int count = stages_of(comparison);
  for (int stage = 0; stage < count; ++stage) stages.push_back(comparison.make(stage, count));
  return stages;
}

std::vector<std::shared_ptr<StageModule>> stages_of_rank(const Comparison& comparison, int rank) {
  const Placement placement = schedule_of(comparison).placement;
  std::vector<std::shared_ptr<StageModule>> stages;
  for (int stage : placement.stages_of(rank)) stages.push_back(comparison.make(stage, placement.stages()));
  return stages;
}

Pipeline make_pipeline(const Comparison& comparison, Rank& rank, std::vector<std::shared_ptr<StageModule>> stages) {
  PipelineOptions options = comparison.options;
  options.timeout = std::chrono::seconds(30);
  if (rank.group) return Pipeline(comparison.schedule, rank.group, std::move(stages), std::move(options));
  return Pipeline(comparison.schedule, rank.transport, std::move(stages), std::move(options));
}

MicroBatches select(const MicroBatches& all, const std::vector<int>& indices) {
  MicroBatches chosen;
  for (int k : indices) chosen.push_back(all.at(k));
  return chosen;
}

void run_on_ranks(const Comparison& comparison, const std::function<void(Rank&)>& body) {
  comparison.over_gloo ? run_gloo_ranks(comparison.ranks, body) : run_ranks(comparison.ranks, body);
}

void expect_close(const at::Tensor& given, const at::Tensor& wanted, double tolerance, const std::string& what) {
  ASSERT_EQ(given.defined(), wanted.defined()) << what;
  if (!given.defined()) return;
  ASSERT_EQ(given.sizes(), wanted.sizes()) << what;
  const double size = wanted.to(at::kDouble).norm().item<double>();
  const double error = (given.to(at::kDouble) - wanted.to(at::kDouble)).norm().item<double>();
  EXPECT_LE(error, tolerance * (size > 0 ? size : 1)) << what << ": error " << error << " of " << size;
}

void expect_like_whole_model(const Comparison& comparison) {
  SCOPED_TRACE(fmt::format("{} on {} ranks, {} micro-batches{}", comparison.schedule, comparison.ranks,
                           comparison.options.num_microbatches, comparison.over_gloo ? ", Gloo" : ""));
  const auto oracle = all_stages(comparison);
  WholeModelResult wanted;
  for (int step = 0; step < comparison.steps; ++step) {
    wanted = run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  }
  run_on_ranks(comparison, [&](Rank& rank) {
    const auto stages = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    StepResult result;
    for (int step = 0; step < comparison.steps; ++step) {
      result = pipeline.step(select(comparison.inputs, pipeline.input_micro_batches()),
                             select(comparison.labels, pipeline.loss_micro_batches()), comparison.criterion, true);
      pipeline.finish_gradients();
    }
    compare_results(comparison, pipeline, result, wanted);
    const std::vector<int> numbers = pipeline.stages();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      compare_gradients(*stages[i], *oracle[numbers[i]], numbers[i], comparison.tolerance);
    }
    if (comparison.check) comparison.check(rank, pipeline, result);
  });
}

MicroBatches random_micro_batches(int count, std::vector<std::int64_t> sizes, std::uint64_t seed) {
  MicroBatches batches;
  for (int k = 0; k < count; ++k) batches.push_back({normal(sizes, seed * 1000 + k)});
  return batches;
}

at::Tensor weight(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  return (normal(sizes, seed) * 0.3).requires_grad_();
}

std::shared_ptr<StageModule> function_stage(std::vector<std::pair<std::string, at::Tensor>> parameters,
                                            std::function<TensorList(const TensorList&)> forward, OverlapHook hook,
                                            std::vector<Phase> phases) {
  return make_stage(std::make_shared<ParametersStage>(parameters), std::move(forward), std::move(hook),
                    std::move(phases));
}

std::shared_ptr<StageModule> mlp_stage(int stage, int width) {
  const at::Tensor up = weight({2 * width, width}, 100 * stage + 1);
  const at::Tensor bias = weight({2 * width}, 100 * stage + 2);
  const at::Tensor down = weight({width, 2 * width}, 100 * stage + 3);
  return function_stage({{"up", up}, {"bias", bias}, {"down", down}}, [=](const TensorList& inputs) {
    return TensorList{at::linear(at::gelu(at::linear(inputs.at(0), up, bias)), down)};
  });
}

}  // namespace dualpipe
