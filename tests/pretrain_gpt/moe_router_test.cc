// Choices, weights, and the two ways to spread the load.
#include "examples/pretrain_gpt/model/moe/router.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/model/moe/auxiliary_loss.h"
#include "tests/pretrain_gpt/moe_reference.h"

namespace pretrain_gpt {
namespace {

Router make_router(const Config& config, const ModelParallel& parallel = {}) {
  return Router(config, parallel, "layers.0.mlp.router");
}

Config router_config() {
  Config config = moe_config();
  config.num_experts = 4;
  config.hidden_size = 4;
  return config;
}

void train(Router& router, const at::Tensor& x) { router.forward(x).weights.sum().backward(); }

// The identity as router weight: x is the logits.
void pass_logits(Router& router) { router.parameters()[0].detach().copy_(at::eye(4)); }

at::Tensor one_token(std::vector<double> logits) { return at::tensor(logits, at::kDouble).view({1, 1, 4}); }

TEST(Router, WeightsAreScoresOverTheirSum) {
  Router router = make_router(router_config());
  pass_logits(router);
  const Routing routing = router.forward(one_token({std::log(1.0), std::log(6.0), std::log(2.0), std::log(1.0)}));
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({1, 2}, at::kLong).view({1, 1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::tensor({0.75, 0.25}, at::kDouble).view({1, 1, 2})));
}

TEST(Router, WithOneChoiceTheWeightIsTheScore) {
  Config config = router_config();
  config.moe_router_topk = 1;
  Router router = make_router(config);
  pass_logits(router);
  const Routing routing = router.forward(one_token({std::log(1.0), std::log(6.0), std::log(2.0), std::log(1.0)}));
  EXPECT_EQ(routing.experts.item<std::int64_t>(), 1);
  EXPECT_NEAR(routing.weights.item<double>(), 0.6, 1e-12);
}

TEST(Router, TheBiasChoosesButDoesNotWeigh) {
  Router router = make_router(router_config());
  pass_logits(router);
  router.buffers()[0].copy_(at::tensor({1.0, 0.0, 0.0, 0.0}));
  const Routing routing = router.forward(one_token({std::log(1.0), std::log(6.0), std::log(2.0), std::log(1.0)}));
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({0, 1}, at::kLong).view({1, 1, 2})));
  EXPECT_TRUE(at::allclose(routing.weights, at::tensor({1.0 / 7, 6.0 / 7}, at::kDouble).view({1, 1, 2})));
}

TEST(Router, ComputesInFloat32AtLeast) {
  Config config = router_config();
  config.params_dtype = "bfloat16";
  const Routing routing = make_router(config).forward(at::ones({1, 1, 4}, at::kBFloat16));
  EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
  EXPECT_EQ(make_router(router_config()).forward(at::ones({1, 1, 4}, at::kDouble)).weights.scalar_type(), at::kDouble);
}

TEST(Router, CountsOnlyWhatIsTrained) {
  Router router = make_router(router_config());
  const at::Tensor x = some_values({2, 3, 4}, 0.2);
  train(router, x);
  train(router, x);
  router.forward(x);  // A first run, whose graph is dropped.
  {
    const at::NoGradGuard evaluation;
    router.forward(x);
  }
  EXPECT_EQ(router.counters().load.sum().item<std::int64_t>(), 2 * 2 * 3 * 2);
  router.reset_counters();
  EXPECT_EQ(router.counters().load.sum().item<std::int64_t>(), 0);
  EXPECT_EQ(router.counters().auxiliary_loss.item<double>(), 0);
}

TEST(Router, AsksForAsManyExpertsAsThereAre) {
  Config config = router_config();
  config.moe_router_topk = 5;
  try {
    make_router(config);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[layers.0.mlp.router] moe_router_topk must be from 1 to num_experts = 4, got 5; for example 4");
  }
}

TEST(AuxiliaryLoss, IsOneWhereAllIsEven) {
  const at::Tensor scores = at::full({2, 3, 4}, 0.25, at::kDouble), counts = at::full(4, 3, at::kLong);
  EXPECT_NEAR(load_balancing_loss(scores, counts, 6).item<double>(), 1, 1e-12);
}

TEST(AuxiliaryLoss, IsTheNumberOfExpertsWhereOneTakesAll) {
  const at::Tensor scores = at::zeros({6, 4}, at::kDouble), counts = at::tensor({0, 6, 0, 0}, at::kLong);
  scores.select(1, 1).fill_(1);
  EXPECT_NEAR(load_balancing_loss(scores, counts, 6).item<double>(), 4, 1e-12);
}

TEST(AuxiliaryLoss, LeavesValuesAndAddsItsGradient) {
  const at::Tensor x = at::ones(3, at::kDouble).requires_grad_(), w = at::full({}, 2.0, at::kDouble).requires_grad_();
  const at::Tensor y = with_loss(x, w * w, 0.25);
  EXPECT_TRUE(at::equal(y, x));
  (y * 3).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full(3, 3.0, at::kDouble)));
  EXPECT_EQ(w.grad().item<double>(), 0.25 * 4);
}

// The gate's gradient over the micro-batches of a step is that of the mean token loss plus the mean auxiliary loss.
TEST(FieldReport89, AnInjectedLossIsAveragedLikeTheLossItself) {
  constexpr std::int64_t kMicroBatches = 4;
  Config config = moe_config();
  config.micro_batch_size = 2;
  config.global_batch_size = 2 * kMicroBatches;
  config.data_parallel_size = 1;
  Router router = make_router(config);
  sharpen(router);
  const at::Tensor slow_weight = router.parameters()[0].detach().clone().requires_grad_();
  double auxiliary = 0;
  for (std::int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor x = some_values({2, 3, config.hidden_size}, 0.1 * static_cast<double>(i + 1));
    const Routing routing = router.forward(x);
    const at::Tensor probe = some_values(routing.weights.sizes(), 0.7);
    ((routing.weights * probe).sum() / static_cast<double>(kMicroBatches)).backward();

    const at::Tensor scores = at::linear(x, slow_weight).softmax(-1);
    const at::Tensor chosen = scores.gather(-1, routing.experts);
    at::Tensor shares = at::zeros(config.num_experts, at::kDouble);
    for (std::int64_t j = 0; j < routing.experts.numel(); ++j) {
      shares[routing.experts.flatten()[j].item<std::int64_t>()] += 1.0 / static_cast<double>(routing.experts.numel());
    }
    const at::Tensor loss =
        config.moe_aux_loss_coeff * static_cast<double>(config.num_experts) * (shares * scores.mean({0, 1})).sum();
    (((chosen / chosen.sum(-1, true) * probe).sum() + loss) / static_cast<double>(kMicroBatches)).backward();
    auxiliary += loss.item<double>() / static_cast<double>(kMicroBatches);
  }
  EXPECT_LT(relative_distance(router.parameters()[0].grad(), slow_weight.grad()), 1e-10);
  EXPECT_NEAR(router.counters().auxiliary_loss.item<double>(), auxiliary, 1e-10);
}

TEST(AuxiliaryLoss, AndLoadAreOfTheSamplesThatCount) {
  const Config config = moe_config();
  Router padded = make_router(config), cut = make_router(config);
  sharpen(padded);
  sharpen(cut);
  const at::Tensor x = some_values({4, 3, config.hidden_size}, 0.4), probe = some_values({4, 3, 2}, 0.7);
  padded.set_auxiliary_loss_scale(4);
  cut.set_auxiliary_loss_scale(1);
  const Routing routing = padded.forward(x, 1);
  EXPECT_EQ(routing.experts.size(0), 4);
  (routing.weights * probe).narrow(0, 0, 1).sum().backward();
  (cut.forward(x.narrow(0, 0, 1)).weights * probe.narrow(0, 0, 1)).sum().backward();
  EXPECT_LT(relative_distance(padded.parameters()[0].grad(), cut.parameters()[0].grad()), 1e-10);
  EXPECT_TRUE(at::equal(padded.counters().load, cut.counters().load));
  EXPECT_NEAR(padded.counters().auxiliary_loss.item<double>(), cut.counters().auxiliary_loss.item<double>(), 1e-12);
  padded.reset_counters();
  padded.forward(x, 0).weights.sum().backward();
  EXPECT_EQ(padded.counters().load.sum().item<std::int64_t>(), 0);
}

TEST(AuxiliaryLoss, HasNoGradientWithoutGradientsFromIt) {
  Config config = moe_config();
  config.moe_router_load_balancing_type = "none";
  Router router = make_router(config);
  router.forward(some_values({2, 3, config.hidden_size}, 0.3)).weights.sum().backward();
  // Weights sum to one, whatever the router's are.
  EXPECT_LT(router.parameters()[0].grad().norm().item<double>(), 1e-12);
  EXPECT_EQ(router.counters().auxiliary_loss.item<double>(), 0);
}

// Ranks with different tokens: {0, 1} with {2, 3} are replicas in one group and mirrors in the other.
TEST(ExpertBias, MovesTowardsBalanceAndIsEqualEverywhere) {
  Config config = moe_config();
  config.moe_router_load_balancing_type = "none";
  config.moe_router_bias_update_rate = 0.002;
  std::mutex mutex;
  std::vector<at::Tensor> biases;
  std::vector<std::vector<double>> worst;  // By rank, over steps: the largest load over the mean.
  run_test_ranks(4, [&](const TestRank& rank) {
    const LayerGroup data = rank.group_by("data", [](int r) { return r / 2; });
    const LayerGroup mirrors = rank.group_by("mirrors", [](int r) { return r % 2; });
    Router first(config, {}, "layers.0.mlp.router"), second(config, {}, "layers.1.mlp.router");
    first.parameters()[0].detach().mul_(5);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank.rank));
    std::vector<double> ratios;
    for (int step = 0; step < 60; ++step) {
      const at::Tensor x = at::randn({1, 128, config.hidden_size}, generator, at::kDouble) + 0.6;
      train(first, x);
      train(second, x);
      at::Tensor load = first.counters().load.clone();
      for (const LayerGroup& group : {data, mirrors}) {
        std::vector<at::Tensor> tensors{load};
        group.group->allreduce(tensors)->wait();
      }
      ratios.push_back(load.max().item<double>() / load.to(at::kDouble).mean().item<double>());
      update_expert_bias({&first, &second}, {data, mirrors});
      EXPECT_EQ(first.counters().load.sum().item<std::int64_t>(), 0);
    }
    const std::lock_guard lock(mutex);
    biases.push_back(at::stack({first.buffers()[0], second.buffers()[0]}));
    worst.push_back(ratios);
  });
  ASSERT_EQ(biases.size(), 4u);
  for (const at::Tensor& bias : biases) {
    EXPECT_TRUE(at::equal(bias, biases[0]));
  }
  EXPECT_GT(worst[0].front(), 1.8);
  const double at_the_end = std::accumulate(worst[0].end() - 6, worst[0].end(), 0.0) / 6;
  EXPECT_LT(at_the_end, 1.3);
}

TEST(ExpertBias, MovesByTheSignOfTheLoad) {
  Config config = router_config();
  config.moe_router_topk = 1;
  config.moe_router_bias_update_rate = 0.125;
  Router router = make_router(config);
  pass_logits(router);
  // Loads 4, 2, 2, 0: the mean is 2.
  const at::Tensor logits =
      5 * at::eye(4, at::kDouble).index_select(0, at::tensor({0, 0, 0, 0, 1, 1, 2, 2}, at::kLong));
  train(router, logits.unsqueeze(0));
  update_expert_bias({&router}, {});
  EXPECT_TRUE(at::equal(router.buffers()[0], at::tensor({-0.125, 0.0, 0.0, 0.125}, at::kDouble)));
}

}  // namespace
}  // namespace pretrain_gpt
