// The built-in 1F1B on ranks that divide tensors, experts, data and stages, beside one process with plain autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/builtin_1f1b.h"
#include "tests/pretrain_gpt/parallel_case.h"

namespace pretrain_gpt {
namespace {

class ParallelTraining : public testing::TestWithParam<Sizes> {};

TEST_P(ParallelTraining, EqualsOneProcess) {
  const Config config = config_of(GetParam());
  const Whole whole = train_whole(config);
  std::mutex mutex;
  std::vector<double> norms, losses;
  run_rank_threads(config, GetParam().world, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    schedule->chunks().at(0)->set_step(1);
    std::map<std::string, at::Tensor> places;
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      const at::Tensor& weight = whole.weights.at(parameter.key());
      places[parameter.key()] = places_in(weight, parameter.value().detach());
      ASSERT_EQ(distance(parameter.value().detach(), pick(weight, places[parameter.key()])), 0) << parameter.key();
    }
    const double loss = schedule->train_step(reader(context));
    const auto optimizer = make_optimizer(context.config, schedule->chunks(), {}, &context.parallel);
    std::map<std::string, at::Tensor> gradients;
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
      gradients[parameter.key()] = parameter.value().grad().clone();
    }
    const double norm = schedule->optimizer_step(*optimizer, 0.5 * whole.norm).grad_norm;
    const std::lock_guard lock(mutex);
    losses.push_back(loss);
    norms.push_back(norm);
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      const std::string& name = parameter.key();
      EXPECT_LT(distance(gradients[name], pick(whole.gradients.at(name), places[name])), 1e-10) << name;
      EXPECT_LT(distance(parameter.value().detach(), pick(whole.stepped.at(name), places[name])), 1e-12) << name;
    }
  });
  EXPECT_NEAR(losses[0], whole.loss, 1e-12);
  EXPECT_NEAR(norms[0] / whole.norm, 1, 1e-13);
  EXPECT_EQ(std::count(losses.begin(), losses.end(), losses[0]), GetParam().world);
  EXPECT_EQ(std::count(norms.begin(), norms.end(), norms[0]), GetParam().world);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParallelTraining,
    testing::Values(
        Sizes{.name = "Dp2", .world = 2, .tensor = 1, .pipeline = 1},
        Sizes{.name = "Dp2Pp2Dropout", .world = 4, .tensor = 1, .pipeline = 2, .dropout = 0.2},
        Sizes{.name = "Dp4Pp2Distributed", .world = 8, .tensor = 1, .pipeline = 2, .distributed_optimizer = true},
        Sizes{.name = "Tp2", .world = 2, .tensor = 2, .pipeline = 1, .untied = true},
        Sizes{.name = "Tp2Pp2", .world = 4, .tensor = 2, .pipeline = 2},
        Sizes{.name = "Tp2Pp4Recompute", .world = 8, .tensor = 2, .pipeline = 4, .recompute = "full"},
        Sizes{.name = "Tp2Pp2Dp2Distributed",
              .world = 8,
              .tensor = 2,
              .pipeline = 2,
              .untied = true,
              .distributed_optimizer = true},
        Sizes{.name = "Tp2SequenceParallelDp2", .world = 4, .tensor = 2, .pipeline = 1, .sequence_parallel = true}),
    [](const testing::TestParamInfo<Sizes>& info) { return info.param.name; });

// Two pipelines side by side, with data of their own.
INSTANTIATE_TEST_SUITE_P(FieldReport62, ParallelTraining,
                         testing::Values(Sizes{.name = "Dp2Pp4", .world = 8, .tensor = 1, .pipeline = 4}),
                         [](const testing::TestParamInfo<Sizes>& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Experts, ParallelTraining,
    testing::Values(Sizes{.name = "Ep1Pp2", .world = 2, .tensor = 1, .pipeline = 2, .experts = 4},
                    Sizes{.name = "Ep2", .world = 2, .tensor = 1, .pipeline = 1, .experts = 4, .expert = 2},
                    Sizes{.name = "Ep2Pp4", .world = 8, .tensor = 1, .pipeline = 4, .experts = 4, .expert = 2},
                    Sizes{.name = "Ep2Edp2Pp2Distributed",
                          .world = 8,
                          .tensor = 1,
                          .pipeline = 2,
                          .experts = 4,
                          .expert = 2,
                          .distributed_optimizer = true},
                    Sizes{.name = "Tp2Ep2Pp2", .world = 8, .tensor = 2, .pipeline = 2, .experts = 4, .expert = 2},
                    Sizes{.name = "Tp2SequenceParallelEp2Pp2",
                          .world = 8,
                          .tensor = 2,
                          .pipeline = 2,
                          .experts = 4,
                          .expert = 2,
                          .sequence_parallel = true},
                    Sizes{.name = "Tp2WholeExpertsEp2",
                          .world = 4,
                          .tensor = 2,
                          .pipeline = 2,
                          .experts = 4,
                          .expert = 2,
                          .expert_tensor = 1,
                          .sequence_parallel = true},
                    Sizes{.name = "Tp2WholeExpertsEp2Dp2",
                          .world = 8,
                          .tensor = 2,
                          .pipeline = 2,
                          .experts = 4,
                          .expert = 2,
                          .expert_tensor = 1,
                          .sequence_parallel = true,
                          .distributed_optimizer = true}),
    [](const testing::TestParamInfo<Sizes>& info) { return info.param.name; });

// Steps follow each other without zeroing: what is there is not summed over the ranks a second time.
TEST(FieldReport04, GradientsAccumulateOverStepsOnDataParallelRanks) {
  for (const bool untied : {false, true}) {
    const Config config = config_of({.name = "", .world = 4, .tensor = 1, .pipeline = 2, .untied = untied});
    const Whole whole = train_whole(config);
    run_rank_threads(config, 4, [&](const TrainContext& context) {
      const auto schedule = builtin_1f1b().make(context);
      for (int step = 0; step < 3; ++step) {
        schedule->train_step(reader(context));
      }
      for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
        EXPECT_LT(distance(parameter.value().grad() / 3, whole.gradients.at(parameter.key()).reshape({-1})), 1e-10);
      }
    });
  }
}

TEST(FieldReport56, AnIncompleteBatchIsAMeanOverItsOwnTokens) {
  Config config = config_of({.name = "", .world = 2, .tensor = 1, .pipeline = 1, .experts = 4});
  config.moe_aux_loss_coeff = 1;  // Padding is not balanced either.
  Config six = config;
  six.global_batch_size = 12;
  const Whole whole = train_whole(six);
  const auto padded = [](MicroBatch batch, std::int64_t index) {
    batch.loss_mask.narrow(0, index < 6 ? 2 : 0, index < 6 ? 0 : 2).zero_();
    return batch;
  };
  for (const int world : {1, 2}) {
    run_rank_threads(config, world, [&](const TrainContext& context) {
      const int rank = context.parallel.rank();
      const auto schedule = builtin_1f1b().make(context);
      GptChunk& chunk = *schedule->chunks().at(0);
      chunk.set_step(1, 12);
      const double loss = schedule->train_step(read_by([&](int k) {
        const std::int64_t index = k * context.config.data_parallel_size + rank;
        return padded(batch_of(config, index), index);
      }));
      EXPECT_NEAR(loss, whole.loss, 1e-12);
      for (const auto& parameter : chunk.named_parameters()) {
        const at::Tensor wanted = whole.gradients.at(parameter.key()).reshape({-1});
        EXPECT_LT(distance(parameter.value().grad(), wanted), 1e-10) << parameter.key();
      }
    });
  }
}

// Gradients of bfloat16 parameters add up in float32 buffers, and `.grad` stays empty.
class Bfloat16 : public testing::TestWithParam<Sizes> {};

TEST_P(Bfloat16, EqualsFloat64InItsPrecision) {
  Config config = config_of(GetParam());
  const Whole whole = train_whole(config);
  config.params_dtype = "bfloat16";
  std::mutex mutex;
  std::vector<double> losses;
  run_rank_threads(config, 8, [&](const TrainContext& context) {
    const auto schedule = builtin_1f1b().make(context);
    const NamedTensors main_gradients = schedule->main_gradients();
    const auto optimizer = make_optimizer(context.config, schedule->chunks(), main_gradients, &context.parallel);
    const double loss = schedule->train_step(reader(context));
    EXPECT_NEAR(loss, whole.loss, 0.03);
    EXPECT_EQ(main_gradients.size(), schedule->chunks().at(0)->named_parameters().size());
    for (const auto& parameter : schedule->chunks().at(0)->named_parameters()) {
      EXPECT_FALSE(parameter.value().grad().defined());
      EXPECT_EQ(main_gradients.at(parameter.key()).scalar_type(), at::kFloat);
    }
    EXPECT_NEAR(schedule->optimizer_step(*optimizer, 0).grad_norm / whole.norm, 1, 0.05);
    const std::lock_guard lock(mutex);
    losses.push_back(loss);
  });
  EXPECT_EQ(std::count(losses.begin(), losses.end(), losses[0]), 8);
}

INSTANTIATE_TEST_SUITE_P(
    FieldReport23, Bfloat16,
    testing::Values(Sizes{.name = "Tp2Pp2Dp2", .world = 8, .tensor = 2, .pipeline = 2, .distributed_optimizer = true},
                    Sizes{.name = "Tp2SequenceParallelEp2Pp2",
                          .world = 8,
                          .tensor = 2,
                          .pipeline = 2,
                          .experts = 4,
                          .expert = 2,
                          .sequence_parallel = true,
                          .distributed_optimizer = true}),
    [](const testing::TestParamInfo<Sizes>& info) { return info.param.name; });

// Buffers in float32 keep what a bfloat16 sum of many micro-batches rounds away.
TEST(MainGradients, AreCloserToTheTruthThanSumsInBfloat16) {
  Config config = config_of({.name = "", .world = 2, .tensor = 1, .pipeline = 1, .recompute = "full"});
  config.micro_batch_size = 1;
  config.global_batch_size = 64;
  config.params_dtype = "bfloat16";
  std::map<bool, double> distances;
  for (const bool in_float32 : {false, true}) {
    config.accumulate_allreduce_grads_in_fp32 = in_float32;
    Config exact = config;
    exact.params_dtype = "float32";
    run_rank_threads(config, 1, [&](const TrainContext& context) {
      const auto schedule = builtin_1f1b().make(context);
      schedule->train_step(reader(context));
      run_rank_threads(exact, 1, [&](const TrainContext& exact_context) {
        const auto wanted = builtin_1f1b().make(exact_context);
        wanted->train_step(reader(exact_context));
        const auto parameters = rank_parameters(schedule->chunks(), schedule->main_gradients());
        const auto references = rank_parameters(wanted->chunks());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          distances[in_float32] +=
              distance(parameters[i].gradient().to(at::kFloat), references[i].gradient().reshape({-1}));
        }
      });
    });
  }
  EXPECT_LT(distances[true], 0.9 * distances[false]);
}

}  // namespace
}  // namespace pretrain_gpt
