// Reports of what goes wrong elsewhere where pipelines meet data parallelism. The number is the report's.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "plugin/runtime/optimizer_hook.h"
#include "tests/runtime/replicated.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

struct CallAfterAccumulation : torch::autograd::PostAccumulateGradHook {
  explicit CallAfterAccumulation(std::function<void(const at::Tensor&)> call) : call(std::move(call)) {}
  void operator()(const at::Tensor& parameter) override { call(parameter); }
  std::function<void(const at::Tensor&)> call;
};

void after_accumulation(const at::Tensor& parameter, std::function<void(const at::Tensor&)> call) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<CallAfterAccumulation>(std::move(call)));
}

at::Tensor parameter_of(const StageModule& stage, const std::string& name) {
  return stage.named_parameters()["module." + name];
}

// The documented event is each W: as often as there are micro-batches. And the replicas' gradients are those of all.
TEST(FieldReport07, HooksFireAtEveryWeightGradientAndReplicasAgree) {
  Comparison comparison = replicated_comparison("zb1p", 2, 4, 2);
  std::atomic<int> calls{0};
  comparison.make = [&calls](int stage, int) {
    auto made = mlp_stage(stage);
    after_accumulation(parameter_of(*made, "up"), [&calls](const at::Tensor& parameter) {
      EXPECT_TRUE(parameter.grad().defined());
      ++calls;
    });
    return made;
  };
  expect_replicas_like_whole_model(comparison, 2);
  const int in_whole_model = 2;  // Of the oracle: one backward, two stages.
  EXPECT_EQ(calls - in_whole_model, 2 * 2 * 4) << "ranks times micro-batches of a replica";
}

// bf16 through every message and every sum.
TEST(FieldReport23, Bf16ModelsAreReducedOverGloo) {
  Comparison comparison = replicated_comparison("dualpipe", 2, 4, 2);
  comparison.options.mean_loss_on_every_rank = true;
  const auto to_bf16 = [](MicroBatches& batches) {
    for (TensorList& batch : batches) batch[0] = batch[0].to(at::kBFloat16);
  };
  to_bf16(comparison.inputs);
  to_bf16(comparison.labels);
  const auto stage_in = [](int stage, at::ScalarType dtype) {
    const at::Tensor up = weight({8, 8}, stage).detach().to(at::kBFloat16).to(dtype).requires_grad_();
    return function_stage({{"up", up}},
                          [up](const TensorList& in) { return TensorList{at::linear(in.at(0), up).tanh()}; });
  };
  std::vector<std::shared_ptr<StageModule>> oracle{stage_in(0, at::kDouble), stage_in(1, at::kDouble)};
  MicroBatches inputs, labels;
  for (const TensorList& batch : comparison.inputs) inputs.push_back({batch[0].to(at::kDouble)});
  for (const TensorList& batch : comparison.labels) labels.push_back({batch[0].to(at::kDouble)});
  const WholeModelResult wanted = run_whole_model(oracle, inputs, labels, comparison.criterion);
  std::vector<double> norms(4), losses(4);
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto numbers = std::vector<int>{replica.position, 1 - replica.position};
    std::vector<std::shared_ptr<StageModule>> stages;
    for (int stage : numbers) stages.push_back(stage_in(stage, at::kBFloat16));
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    const StepResult result = train_once(comparison, replica, pipeline);
    torch::optim::SGD idle({at::zeros({1}).requires_grad_()}, 0.1);
    norms[replica.rank.index] = OptimizerHook(pipeline, idle).step().grad_norm;
    losses[replica.rank.index] = *result.mean_loss;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      expect_close(parameter_of(*stages[i], "up").grad(), parameter_of(*oracle[numbers[i]], "up").grad(), 0.05, "bf16");
    }
  });
  EXPECT_THAT(norms, testing::Each(norms[0]));
  EXPECT_THAT(losses, testing::Each(losses[0]));
  EXPECT_NEAR(losses[0], wanted.global_loss, 0.02 * wanted.global_loss);
}

// One process' norm on every rank of every replica, and the clipped gradients of one process.
TEST(FieldReport47, ClippingUsesTheNormOfTheWholeModel) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = replicated_comparison(schedule, 2, 4, 2);
    const auto oracle = all_stages(comparison);
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    double squares = 0;
    for (const auto& stage : oracle) {
      for (const at::Tensor& parameter : stage->parameters()) squares += parameter.grad().square().sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    run_replicas(comparison, 2, [&](Replica& replica) {
      const auto stages = stages_of_rank(comparison, replica.position);
      Pipeline pipeline = make_pipeline(comparison, replica, stages);
      torch::optim::SGD idle({at::zeros({1}, at::kDouble).requires_grad_()}, 0.1);
      OptimizerHook hook(pipeline, idle, norm / 10);
      train_once(comparison, replica, pipeline);
      EXPECT_NEAR(hook.step().grad_norm, norm, 1e-10 * norm) << schedule;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto wanted = oracle[pipeline.stages()[i]]->parameters();
        for (std::size_t p = 0; p < wanted.size(); ++p) {
          const at::Tensor clipped = wanted[p].grad() * ((norm / 10) / (norm + 1e-6));
          expect_close(stages[i]->parameters()[p].grad(), clipped, 1e-10, schedule);
        }
      }
    });
  }
}

std::int64_t ulps_apart(double a, double b) {
  std::int64_t x, y;
  std::memcpy(&x, &a, sizeof(x));
  std::memcpy(&y, &b, sizeof(y));
  return std::abs(x - y);
}

// The norm of a model under one schedule, as every rank has it.
double norm_under(Comparison comparison, int replicas) {
  std::vector<double> norms(comparison.ranks * replicas);
  run_replicas(comparison, replicas, [&](Replica& replica) {
    Pipeline pipeline = make_pipeline(comparison, replica, stages_of_rank(comparison, replica.position));
    torch::optim::SGD idle({at::zeros({1}, at::kDouble).requires_grad_()}, 0.1);
    OptimizerHook hook(pipeline, idle);
    train_once(comparison, replica, pipeline);
    norms[replica.rank.index] = hook.step().grad_norm;
  });
  EXPECT_THAT(norms, testing::Each(norms[0])) << comparison.schedule;
  return norms[0];
}

// A model of four stages in each layout that holds it, mirrored and not.
TEST(FieldReport49, TheNormDoesNotDependOnTheScheduleWithReplicas) {
  for (const auto& [dtype, is_close] : std::vector<std::pair<at::ScalarType, std::function<bool(double, double)>>>{
           {at::kDouble, [](double a, double b) { return ulps_apart(a, b) <= 2; }},
           {at::kFloat, [](double a, double b) { return std::abs(a - b) <= 1e-6 * a; }}}) {
    std::map<std::string, double> norms;
    for (const auto& [schedule, ranks] : std::vector<std::pair<std::string, int>>{
             {"1f1b", 4}, {"zb1p", 4}, {"interleaved_1f1b", 2}, {"dualpipe", 4}, {"dualpipev", 2}}) {
      Comparison comparison = replicated_comparison(schedule, ranks, 8, 2);
      comparison.make = [dtype = dtype](int stage, int) {
        const at::Tensor up = weight({16, 8}, 10 * stage + 1).detach().to(dtype).requires_grad_();
        const at::Tensor down = weight({8, 16}, 10 * stage + 2).detach().to(dtype).requires_grad_();
        return function_stage({{"up", up}, {"down", down}}, [=](const TensorList& in) {
          return TensorList{at::linear(at::gelu(at::linear(in.at(0), up)), down)};
        });
      };
      for (MicroBatches* batches : {&comparison.inputs, &comparison.labels}) {
        for (TensorList& batch : *batches) batch[0] = batch[0].to(dtype);
      }
      norms[schedule] = norm_under(comparison, 2);
      EXPECT_TRUE(is_close(norms.begin()->second, norms[schedule])) << schedule << " in " << c10::toString(dtype);
    }
  }
}

// The loss ranks' mean goes to all ranks of all replicas in double, whatever the model computes in.
TEST(FieldReport52, TheLossOfABf16ModelIsOneValueOnAllRanks) {
  Comparison comparison = replicated_comparison("1f1b", 4, 4, 2);
  comparison.options.mean_loss_on_every_rank = true;
  comparison.make = [](int stage, int) {
    const at::Tensor up = weight({8, 8}, stage).detach().to(at::kBFloat16).requires_grad_();
    return function_stage({{"up", up}},
                          [up](const TensorList& in) { return TensorList{at::linear(in.at(0), up).tanh()}; });
  };
  for (MicroBatches* batches : {&comparison.inputs, &comparison.labels}) {
    for (TensorList& batch : *batches) batch[0] = batch[0].to(at::kBFloat16);
  }
  std::vector<double> means(8), evaluated(8);
  std::vector<double> own(2, 0.0);
  run_replicas(comparison, 2, [&](Replica& replica) {
    Pipeline pipeline = make_pipeline(comparison, replica, stages_of_rank(comparison, replica.position));
    const auto global = [&](const std::vector<int>& ids) {
      std::vector<int> shifted;
      for (int k : ids) shifted.push_back(k + 4 * replica.index);
      return shifted;
    };
    evaluated[replica.rank.index] =
        *pipeline
             .evaluate(select(comparison.inputs, global(pipeline.input_micro_batches())),
                       select(comparison.labels, global(pipeline.loss_micro_batches())), comparison.criterion, false)
             .mean_loss;
    const StepResult result = train_once(comparison, replica, pipeline);
    means[replica.rank.index] = *result.mean_loss;
    for (const at::Tensor& loss : result.losses) {
      EXPECT_EQ(loss.scalar_type(), at::kBFloat16);
      own[replica.index] += loss.item<double>() / 8;
    }
  });
  EXPECT_TRUE(std::isfinite(means[0]));
  EXPECT_THAT(means, testing::Each(means[0]));
  EXPECT_THAT(evaluated, testing::Each(means[0]));
  EXPECT_NEAR(means[0], own[0] + own[1], 1e-12) << "the mean of what the last stages computed";
}

// Lengths by replica and micro-batch; summed over replicas, and as two pipelines that know nothing of each other.
TEST(FieldReport62, PipelinesSideBySideKeepTheirMessagesApart) {
  for (const std::string schedule : {"1f1b", "dualpipe"}) {
    Comparison comparison = replicated_comparison(schedule, 4, 8, 2);
    comparison.options.variable_seq_lengths = true;
    comparison.options.slots = 3;
    for (int k = 0; k < 16; ++k) {
      const int rows = k < 8 ? 1 + k % 3 : 4 + (5 * k) % 7;
      comparison.inputs[k] = {comparison.inputs[k][0].repeat({3, 1}).narrow(0, 0, rows)};
      comparison.labels[k] = {comparison.labels[k][0].repeat({3, 1}).narrow(0, 0, rows)};
    }
    comparison.steps = 2;
    expect_replicas_like_whole_model(comparison, 2);

    std::vector<std::vector<std::shared_ptr<StageModule>>> oracles;
    for (int index = 0; index < 2; ++index) {
      oracles.push_back(all_stages(comparison));
      const auto part = [&](const MicroBatches& all) {
        return MicroBatches(all.begin() + 8 * index, all.begin() + 8 * (index + 1));
      };
      run_whole_model(oracles.back(), part(comparison.inputs), part(comparison.labels), comparison.criterion);
    }
    run_replicas(comparison, 2, [&](Replica& replica) {
      replica.groups = {};
      const auto stages = stages_of_rank(comparison, replica.position);
      Pipeline pipeline = make_pipeline(comparison, replica, stages);
      train_once(comparison, replica, pipeline);
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto wanted = oracles[replica.index][pipeline.stages()[i]]->parameters();
        for (std::size_t p = 0; p < wanted.size(); ++p) {
          expect_close(stages[i]->parameters()[p].grad(), wanted[p].grad(), 1e-10, schedule);
        }
      }
    });
  }
}

// Code outside takes the bias' gradient into its own buffer right where it appears, before the W of the weights.
TEST(FieldReport86, AGradientThatAHookTakesAwayIsMissedByNobody) {
  Comparison comparison = replicated_comparison("zb1p", 2, 4, 2);
  const auto oracle = all_stages(comparison);
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  std::mutex mutex;
  std::vector<at::Tensor> taken(2);
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    const at::Tensor bias = parameter_of(*stages[0], "bias");
    after_accumulation(bias, [&](const at::Tensor& parameter) {
      const std::lock_guard lock(mutex);
      at::Tensor& sum = taken[replica.position];
      sum = sum.defined() ? sum + parameter.grad() : parameter.grad().clone();
      parameter.mutable_grad().reset();
    });
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    train_once(comparison, replica, pipeline);
    EXPECT_FALSE(bias.grad().defined());
    for (const std::string name : {"up", "down"}) {
      expect_close(parameter_of(*stages[0], name).grad(), parameter_of(*oracle[replica.position], name).grad(), 1e-10,
                   name);
    }
  });
  for (int stage = 0; stage < 2; ++stage)
    expect_close(taken[stage], parameter_of(*oracle[stage], "bias").grad(), 1e-10, "the hooks' buffer");
}

// The embedding of the first stage is the head of the last, as copies on both ends of every replica.
TEST(TiedWeightsOfReplicas, AreEqualToTheBitOnAllEnds) {
  class Tied final : public StageModule {
   public:
    Tied(int stage, int stages) : tied_(stage == 0 || stage == stages - 1) {
      shared_ = register_parameter("w", weight({8, 8}, tied_ ? 0 : stage));
      own_ = register_parameter("b", weight({8}, 50 + stage));
    }
    TensorList forward(const TensorList& in) override { return {at::linear(in.at(0), shared_, own_).tanh()}; }
    std::string logical_name(int stage, const std::string& name) const override {
      return tied_ && name == "w" ? "shared" : StageModule::logical_name(stage, name);
    }

   private:
    bool tied_;
    at::Tensor shared_, own_;
  };
  for (const auto& [schedule, in_one_group] : std::vector<std::pair<std::string, bool>>{
           {"1f1b", true}, {"1f1b", false}, {"zb1p", true}, {"interleaved_1f1b", true}, {"interleaved_1f1b", false}}) {
    Comparison comparison = replicated_comparison(schedule, 2, 4, 2);
    comparison.make = [](int stage, int stages) { return std::make_shared<Tied>(stage, stages); };
    const auto oracle = all_stages(comparison);
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    const at::Tensor wanted = oracle.front()->parameters()[0].grad() + oracle.back()->parameters()[0].grad();
    std::vector<at::Tensor> copies(4);
    run_replicas(comparison, 2, [&, with_group = in_one_group](Replica& replica) {
      const GradientGroup tied{replica.rank.group, [](const std::string& name) { return name == "shared"; }};
      if (with_group) replica.groups.gradients.insert(replica.groups.gradients.begin(), tied);
      const auto stages = stages_of_rank(comparison, replica.position);
      Pipeline pipeline = make_pipeline(comparison, replica, stages);
      train_once(comparison, replica, pipeline);
      const auto& mine = replica.position == 0 ? stages.front() : stages.back();
      copies[replica.rank.index] = mine->parameters()[0].grad();
      for (std::size_t i = 0; i < stages.size(); ++i) {
        expect_close(stages[i]->parameters()[1].grad(), oracle[pipeline.stages()[i]]->parameters()[1].grad(), 1e-10,
                     "what is not tied");
      }
    });
    for (const at::Tensor& copy : copies) {
      expect_close(copy, wanted, 1e-10, schedule);
      EXPECT_TRUE(at::equal(copy, copies[0])) << schedule;
    }
  }
}

// With the closing W put off, buckets start where the hook runs it.
TEST(DeferredReplicas, AreFinalAfterFinishGradients) {
  for (const std::string schedule : {"dualpipe", "dualpipev", "zb1p"}) {
    Comparison comparison = replicated_comparison(schedule, 2, 6, 2);
    comparison.options.defer_tail_weight_gradients = true;
    comparison.steps = 2;
    expect_replicas_like_whole_model(comparison, 2);
  }
}

// A sum over valid tokens: what a replica weighs is not the same on all.
TEST(ReplicaWeights, AreThoseOfTheGlobalBatch) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = replicated_comparison(schedule, 2, 4, 2);
    comparison.options.mean_loss_on_every_rank = true;
    comparison.criterion = Criterion::sum(
        [](const TensorList& out, const TensorList& labels) { return (out.at(0) - labels.at(0)).square().sum(); },
        [](const TensorList& labels) { return 1 + labels.at(0).abs().sum().item<double>(); });
    expect_replicas_like_whole_model(comparison, 2);
  }
}

// Two tensor-parallel ranks of two replicas, on DualPipe's two mirrors: eight holders, each part once.
TEST(ShardedNorm, CountsEachPartOfAParameterOnce) {
  std::vector<double> norms(8);
  run_ranks(8, [&](Rank& rank) {
    const int tensor = rank.index % 2;
    const at::Tensor column = at::full({2}, 1.0 + tensor, at::kDouble).requires_grad_();
    const at::Tensor whole = at::full({1}, 5.0, at::kDouble).requires_grad_();
    const at::Tensor& held = column;
    std::vector<StageParameter> parameters{{"column", 0, held, {}, {}, "tp" + std::to_string(tensor)},
                                           {"norm", 0, whole, {}, {}, ""}};
    column.mutable_grad() = column.detach().clone();
    whole.mutable_grad() = whole.detach().clone();
    const Gradients gradients(parameters, false);
    GradientNorm norm(rank.transport, gradients);
    EXPECT_EQ(norm.size(), 3u);
    norms[rank.index] = norm.compute(gradients);
  });
  EXPECT_THAT(norms, testing::Each(std::sqrt(2 * 1 + 2 * 4 + 25.0)));
}

// Gradients divided over replicas: the members of one group count a parameter together, its other copies nothing.
TEST(ShardedNorm, CountsADividedGradientOnce) {
  std::vector<double> norms(4);
  run_ranks(4, [&](Rank& rank) {
    const at::Tensor weight = at::ones({5}, at::kDouble).requires_grad_();
    at::Tensor gradient = at::arange(1, 6, at::kDouble);
    const int member = rank.index / 2;  // Of the group of its tensor-parallel rank.
    gradient.slice(0, member == 0 ? 3 : 0, member == 0 ? 5 : 3).zero_();
    weight.mutable_grad() = gradient;
    const Gradients gradients({{"w", 0, weight, {}, {}, ""}}, false);
    const GradientPart part{member == 0 ? 0 : 3, member == 0 ? 3 : 5, "group" + std::to_string(rank.index % 2)};
    norms[rank.index] = GradientNorm(rank.transport, gradients, {part}).compute(gradients);
  });
  EXPECT_THAT(norms, testing::Each(std::sqrt(1 + 4 + 9 + 16 + 25.0)));
}

}  // namespace
}  // namespace dualpipe
