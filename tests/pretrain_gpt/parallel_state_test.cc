// What ranks hold beside their gradients: groups, biases of experts, and the bytes of it all.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/expert_balance.h"
#include "examples/pretrain_gpt/memory_formula.h"
#include "tests/pretrain_gpt/parallel_case.h"

namespace pretrain_gpt {
namespace {

std::map<std::string, at::Tensor> biases_after_two_steps(const TrainContext& context) {
  const auto schedule = builtin_1f1b().make(context);
  for (int step = 0; step < 2; ++step) {
    schedule->train_step(reader(context));
    balance_experts(context.config, schedule->chunks(), context.parallel, /*skipped=*/false);
  }
  std::map<std::string, at::Tensor> biases;
  for (const auto& buffer : schedule->chunks().at(0)->named_buffers()) {
    biases[buffer.key()] = buffer.value().clone();
  }
  return biases;
}

TEST(ExpertBias, IsEqualOnAllRanksAndToThatOfOneProcess) {
  Config alone = config_of({.name = "", .world = 1, .tensor = 1, .pipeline = 1, .experts = 4});
  alone.moe_router_enable_expert_bias = true;
  std::map<std::string, at::Tensor> wanted;
  run_rank_threads(alone, 1, [&](const TrainContext& context) { wanted = biases_after_two_steps(context); });
  ASSERT_EQ(wanted.size(), 2);
  EXPECT_GT(wanted.begin()->second.abs().sum().item<double>(), 0);
  Config config = config_of({.name = "", .world = 8, .tensor = 2, .pipeline = 2, .experts = 4, .expert = 2});
  config.moe_router_enable_expert_bias = true;
  config.sequence_parallel = true;
  run_rank_threads(config, 8, [&](const TrainContext& context) {
    const auto got = biases_after_two_steps(context);
    EXPECT_EQ(got.size(), 1);
    for (const auto& [name, bias] : got) {
      EXPECT_TRUE(at::equal(bias, wanted.at(name))) << name;
    }
  });
}

TEST(MemoryFormula, CountsTheParametersOfEveryRank) {
  for (const int expert : {1, 2}) {
    Config config = config_of(
        {.name = "", .world = 8, .tensor = 2, .pipeline = 2, .experts = 4, .expert = expert, .untied = expert == 2});
    run_rank_threads(config, 8, [&](const TrainContext& context) {
      const auto schedule = builtin_1f1b().make(context);
      ElementCount counted;
      for (const RankParameter& parameter : rank_parameters(schedule->chunks())) {
        (parameter.layout.is_expert ? counted.expert : counted.dense) += parameter.parameter.numel();
      }
      const ElementCount wanted = count_elements(context.config, {schedule->chunks().at(0)->chunk()});
      EXPECT_EQ(counted.dense, wanted.dense);
      EXPECT_EQ(counted.expert, wanted.expert);
    });
  }
}

TEST(MemoryFormula, DividesTheStateOfTheDistributedOptimizer) {
  Config config;
  config.params_dtype = "bfloat16";
  StateBytes bytes = formula_bytes(config, {100, 20}, {4, 2});
  EXPECT_EQ(bytes.parameters, 240);
  EXPECT_EQ(bytes.gradients, 480);
  EXPECT_EQ(bytes.optimizer_state, 120 * 12);
  config.use_distributed_optimizer = true;
  EXPECT_EQ(formula_bytes(config, {100, 20}, {4, 2}).optimizer_state, (25 + 10) * 12);
  config.use_distributed_optimizer = false;
  config.params_dtype = "float32";
  EXPECT_EQ(formula_bytes(config, {100, 20}, {4, 2}).optimizer_state, 120 * 8);
}

// Every kind of group has the members that the table says, in its order, on every rank.
void expect_members(const TrainContext& context, GroupKind kind) {
  const ProcessGroups& parallel = context.parallel;
  const std::vector<int> members = parallel.layout().group_of(kind, parallel.rank());
  const Group& group = parallel.of(kind);
  if (!group) {
    EXPECT_EQ(members, std::vector<int>{parallel.rank()}) << name_of(kind);
    return;
  }
  const at::Tensor mine = at::full({1}, parallel.rank(), at::kLong);
  at::Tensor ranks = at::empty({group->getSize()}, at::kLong), from = mine;
  group->all_gather_single(ranks, from)->wait();
  const std::int64_t* first = ranks.const_data_ptr<std::int64_t>();
  EXPECT_EQ(std::vector<int>(first, first + ranks.numel()), members) << name_of(kind);
}

TEST(FieldReport64, EveryRankIsInTheGroupsOfTheTable) {
  for (const bool mirrored : {false, true}) {
    for (const int expert : {1, 2}) {
      const Config config =
          config_of({.name = "", .world = 8, .tensor = 2, .pipeline = 2, .experts = 4, .expert = expert});
      const auto check = [&](const TrainContext& context) {
        for (const GroupKind kind : group_kinds()) {
          expect_members(context, kind);
        }
        EXPECT_EQ(context.parallel.world()->getRank(), context.parallel.rank());
      };
      run_rank_threads(config, 8, check, mirrored);
    }
  }
}

TEST(ProcessGroups, RefuseALayoutForAnotherWorld) {
  Environment environment;
  environment.world_size = 3;
  try {
    ProcessGroups(RankLayout({.tensor = 2, .pipeline = 2}), environment, c10::make_intrusive<c10d::HashStore>(),
                  std::chrono::seconds(1));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "[parallel groups] tensor x data x pipeline = 2 x 1 x 2 = 4 must be the number of processes, got 3; for "
        "example start 4 processes");
  }
}

}  // namespace
}  // namespace pretrain_gpt
