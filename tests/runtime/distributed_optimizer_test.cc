#include "plugin/runtime/distributed_optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>

#include "plugin/runtime/optimizer_hook.h"
#include "plugin/schedule/error.h"
#include "tests/runtime/replicated.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;
using torch::optim::AdamWOptions;

constexpr int kSteps = 4;
constexpr double kClip = 0.05;

AdamWOptions options() { return AdamWOptions(0.01).weight_decay(0.1).eps(1e-9); }

std::vector<at::Tensor> all_parameters(const std::vector<std::shared_ptr<StageModule>>& stages) {
  std::vector<at::Tensor> all;
  for (const auto& stage : stages) {
    for (const at::Tensor& parameter : stage->parameters()) all.push_back(parameter);
  }
  return all;
}

struct Case {
  std::string schedule;
  int ranks;
  int replicas;
  bool shard_gradients;
  std::int64_t bucket_bytes;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.schedule << " P=" << c.ranks << " DP=" << c.replicas << (c.shard_gradients ? " sharded" : "");
}

class DistributedAdamW : public testing::TestWithParam<Case> {};

// AdamW of one process, clipped; parameters of all copies equal to the bit; the state is a share of it.
TEST_P(DistributedAdamW, StepsLikeOneProcess) {
  const Case& c = GetParam();
  Comparison comparison = replicated_comparison(c.schedule, c.ranks, 2 * c.ranks, c.replicas);
  comparison.options.shard_gradients = c.shard_gradients;
  comparison.options.gradient_bucket_bytes = c.bucket_bytes;
  const auto oracle = all_stages(comparison);
  torch::optim::AdamW whole(all_parameters(oracle), options());
  std::vector<double> wanted_norms;
  for (int step = 0; step < kSteps; ++step) {
    whole.zero_grad();
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    double squares = 0;
    for (const at::Tensor& p : all_parameters(oracle)) squares += p.grad().square().sum().item<double>();
    wanted_norms.push_back(std::sqrt(squares));
    for (const at::Tensor& p : all_parameters(oracle)) p.mutable_grad().mul_(kClip / (std::sqrt(squares) + 1e-6));
    whole.step();
  }
  std::mutex mutex;
  std::map<std::string, at::Tensor> copies;
  run_replicas(comparison, c.replicas, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    DistributedOptimizer optimizer(pipeline, options());
    OptimizerHook hook(pipeline, optimizer, kClip);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      train_once(comparison, replica, pipeline);
      EXPECT_NEAR(hook.step().grad_norm, wanted_norms[step], 1e-11 * wanted_norms[step]);
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto wanted = oracle[pipeline.stages()[i]]->parameters();
      for (std::size_t p = 0; p < wanted.size(); ++p) {
        expect_close(stages[i]->parameters()[p], wanted[p], 1e-12, "parameter after " + std::to_string(kSteps));
      }
    }
    std::int64_t elements = 0;
    for (const StageParameter& parameter : pipeline.parameters()) elements += parameter.parameter.numel();
    const std::int64_t members = replica.groups.gradients[0].group->getSize();
    const OptimizerBytes bytes = optimizer.bytes();
    EXPECT_EQ(bytes.parameters, 8 * elements);
    EXPECT_EQ(bytes.gradients, 8 * elements);
    const std::int64_t padding = static_cast<std::int64_t>(pipeline.parameters().size());
    EXPECT_LE(bytes.state, 16 * (elements / members + padding));
    at::Tensor all_state = at::full({1}, bytes.state, at::kLong);
    std::vector<at::Tensor> sum{all_state};
    replica.groups.gradients[0].group->allreduce(sum)->wait();
    EXPECT_EQ(all_state.item<std::int64_t>(), 16 * elements) << "all members together hold one state";

    const std::lock_guard lock(mutex);
    for (const StageParameter& parameter : pipeline.parameters()) {
      const auto [first, is_new] = copies.try_emplace(parameter.name, parameter.parameter);
      EXPECT_TRUE(at::equal(first->second, parameter.parameter)) << parameter.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DistributedAdamW,
                         testing::Values(Case{"1f1b", 2, 2, false, 1 << 20}, Case{"zb1p", 2, 3, true, 1 << 20},
                                         Case{"dualpipe", 2, 1, true, 1 << 20}, Case{"dualpipe", 2, 3, false, 100},
                                         Case{"dualpipe", 4, 2, true, 100}, Case{"dualpipev", 2, 2, true, 100}));

Comparison bf16_comparison() {
  Comparison comparison = replicated_comparison("dualpipe", 2, 4, 2);
  comparison.make = [](int stage, int) {
    const at::Tensor up = weight({8, 8}, stage).detach().to(at::kBFloat16).requires_grad_();
    return function_stage({{"up", up}},
                          [up](const TensorList& in) { return TensorList{at::linear(in.at(0), up).tanh()}; });
  };
  for (MicroBatches* batches : {&comparison.inputs, &comparison.labels}) {
    for (TensorList& batch : *batches) batch[0] = batch[0].to(at::kBFloat16);
  }
  return comparison;
}

// bf16 weights with fp32 gradients: AdamW on a float32 copy, to the bit, whose values a bf16 sum would lose.
TEST(DistributedOptimizer, TrainsAFloat32CopyOfNarrowParameters) {
  const Comparison comparison = bf16_comparison();
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    Comparison own = comparison;
    for (int i = 0; i < 2; ++i) {
      const int stage = i == 0 ? replica.position : 1 - replica.position;
      own.options.main_grads["stage" + std::to_string(stage) + ".up"] = at::zeros({8, 8}, at::kFloat);
    }
    Pipeline pipeline = make_pipeline(own, replica, stages);
    const AdamWOptions small = AdamWOptions(1e-4);
    DistributedOptimizer optimizer(pipeline, small);
    std::vector<at::Tensor> reference;
    for (const StageParameter& p : pipeline.parameters())
      reference.push_back(p.parameter.detach().to(at::kFloat).requires_grad_());
    torch::optim::AdamW plain(reference, small);
    for (int step = 0; step < kSteps; ++step) {
      for (const StageParameter& p : pipeline.parameters()) at::Tensor(p.main_grad).zero_();
      train_once(comparison, replica, pipeline);
      for (std::size_t i = 0; i < reference.size(); ++i)
        reference[i].mutable_grad() = pipeline.gradients().gradient(i).clone();
      optimizer.step();
      plain.step();
      for (std::size_t i = 0; i < reference.size(); ++i) {
        EXPECT_TRUE(at::equal(pipeline.parameters()[i].parameter, reference[i].to(at::kBFloat16))) << step;
      }
    }
    const OptimizerBytes bytes = optimizer.bytes();
    EXPECT_EQ(bytes.parameters, 2 * 128);
    EXPECT_EQ(bytes.gradients, 4 * 128);
    EXPECT_EQ(bytes.state, 12 * 128 / 4);
  });
}

// Half of the steps, saved, read into new copies of everything, then the other half: as without the break.
TEST(DistributedOptimizer, ContinuesFromItsOwnState) {
  const Comparison comparison = replicated_comparison("dualpipe", 2, 4, 2);
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto run = [&](Pipeline& pipeline, DistributedOptimizer& optimizer, int steps) {
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        train_once(comparison, replica, pipeline);
        optimizer.step();
      }
    };
    const auto straight_stages = stages_of_rank(comparison, replica.position);
    Pipeline straight = make_pipeline(comparison, replica, straight_stages);
    DistributedOptimizer whole(straight, options());
    run(straight, whole, 2);
    std::stringstream file;
    torch::serialize::OutputArchive out;
    whole.save(out);
    out.save_to(file);
    std::vector<at::Tensor> values;
    for (const StageParameter& p : straight.parameters()) values.push_back(p.parameter.detach().clone());
    run(straight, whole, 2);

    Pipeline resumed = make_pipeline(comparison, replica, stages_of_rank(comparison, replica.position));
    DistributedOptimizer second(resumed, options());
    {
      at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < values.size(); ++i) at::Tensor(resumed.parameters()[i].parameter).copy_(values[i]);
    }
    torch::serialize::InputArchive in;
    in.load_from(file);
    second.load(in);
    second.read_parameters();
    run(resumed, second, 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(resumed.parameters()[i].parameter, straight.parameters()[i].parameter));
    }
  });
}

TEST(DistributedOptimizer, RefusesTheStateOfAnotherLayout) {
  const Comparison comparison = replicated_comparison("1f1b", 1, 2, 2);
  run_replicas(comparison, 2, [&](Replica& replica) {
    std::stringstream file;
    {
      Pipeline pipeline = make_pipeline(comparison, replica, stages_of_rank(comparison, 0));
      DistributedOptimizer optimizer(pipeline, options());
      torch::serialize::OutputArchive out;
      optimizer.save(out);
      out.save_to(file);
    }
    replica.groups = {};
    Pipeline alone = make_pipeline(comparison, replica, stages_of_rank(comparison, 0));
    DistributedOptimizer optimizer(alone, options());
    torch::serialize::InputArchive in;
    in.load_from(file);
    try {
      optimizer.load(in);
      ADD_FAILURE() << "accepted";
    } catch (const ScheduleError& error) {
      EXPECT_THAT(error.what(), HasSubstr("of a checkpoint must be this rank's"));
    }
  });
}

// Weights decay, biases do not; the rate changes on the way; the last weight is left alone by both.
TEST(DistributedOptimizer, TakesParameterGroupsLikeAnyOptimizer) {
  Comparison comparison = replicated_comparison("1f1b", 1, 2, 2);
  const auto groups_of = [](const StageModule& stage) {
    const auto named = stage.named_parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{named["module.up"]});
    groups.emplace_back(std::vector<at::Tensor>{named["module.bias"]},
                        std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0)));
    return groups;
  };
  const auto lower = [](torch::optim::Optimizer& optimizer) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(0.003);
  };
  const auto oracle = all_stages(comparison);
  torch::optim::AdamW plain(groups_of(*oracle[0]), options());
  for (int step = 0; step < 2; ++step) {
    plain.zero_grad();
    run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
    plain.step();
    lower(plain);
  }
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, 0);
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    DistributedOptimizer optimizer(pipeline, groups_of(*stages[0]), options());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      train_once(comparison, replica, pipeline);
      optimizer.step();
      lower(optimizer);
    }
    for (std::size_t p = 0; p < 3; ++p) expect_close(stages[0]->parameters()[p], oracle[0]->parameters()[p], 1e-12, "");
  });
}

TEST(DistributedOptimizer, StepsNowhereWhereAnythingIsNotFinite) {
  Comparison comparison = replicated_comparison("dualpipe", 2, 4, 2);
  comparison.options.shard_gradients = true;
  comparison.inputs[5] = {at::full({4, 8}, std::numeric_limits<double>::infinity(), at::kDouble)};
  run_replicas(comparison, 2, [&](Replica& replica) {
    const auto stages = stages_of_rank(comparison, replica.position);
    Pipeline pipeline = make_pipeline(comparison, replica, stages);
    DistributedOptimizer optimizer(pipeline, options());
    OptimizerHook hook(pipeline, optimizer, 1.0);
    const at::Tensor before = stages[0]->parameters()[0].detach().clone();
    train_once(comparison, replica, pipeline);
    EXPECT_TRUE(hook.step().skipped);
    EXPECT_TRUE(at::equal(stages[0]->parameters()[0], before));
  });
}

// Without groups it is AdamW.
TEST(DistributedOptimizer, WorksAlone) {
  Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  const auto oracle = all_stages(comparison);
  torch::optim::AdamW plain(all_parameters(oracle), options());
  run_whole_model(oracle, comparison.inputs, comparison.labels, comparison.criterion);
  plain.step();
  run_ranks(2, [&](Rank& rank) {
    const auto stages = stages_of_rank(comparison, rank.index);
    Pipeline pipeline = make_pipeline(comparison, rank, stages);
    DistributedOptimizer optimizer(pipeline, options());
    train_once(comparison, pipeline);
    optimizer.step();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t p = 0; p < 3; ++p) {
        expect_close(stages[i]->parameters()[p], oracle[pipeline.stages()[i]]->parameters()[p], 1e-12, "");
      }
    }
  });
}

TEST(DistributedOptimizer, RefusesWhatItCannotShard) {
  Comparison comparison = mlp_comparison("1f1b", 1, 2);
  run_ranks(1, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, 0));
    const auto message_of = [&](const std::function<void()>& body) {
      try {
        body();
      } catch (const ScheduleError& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    EXPECT_EQ(message_of([&] { DistributedOptimizer(pipeline, AdamWOptions(0.1).amsgrad(true)); }),
              "[distributed_optimizer] amsgrad must be false, got true; its maximum is not kept");
    const at::Tensor foreign = at::ones({3}).requires_grad_();
    EXPECT_EQ(
        message_of(
            [&] { DistributedOptimizer(pipeline, {torch::optim::OptimizerParamGroup({foreign})}, AdamWOptions(0.1)); }),
        "[distributed_optimizer] parameters must be those that the pipeline trains on this rank, got another of 3 "
        "elements; give it to an optimizer of its own");
  });
}

}  // namespace
}  // namespace dualpipe
