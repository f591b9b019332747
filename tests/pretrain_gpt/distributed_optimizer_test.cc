#include "examples/pretrain_gpt/distributed_optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/gradient_norm.h"
#include "examples/pretrain_gpt/optimizer.h"
#include "tests/pretrain_gpt/rank_threads.h"

namespace pretrain_gpt {
namespace {

using torch::optim::AdamWOptions;
using Part = DistributedOptimizer::Part;

// Shapes that no number of ranks divides, an empty tensor among them.
std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{{3, 5}, {7}, {0}, {2, 2, 2}}) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) {
      count *= size;
    }
    parameters.push_back(at::sin(at::arange(count, at::kDouble) + count).view(sizes).to(dtype).requires_grad_());
  }
  return parameters;
}

at::Tensor gradient_of(const at::Tensor& parameter, int step) {
  return at::cos(at::arange(parameter.numel(), at::kDouble) * (step + 1)).view(parameter.sizes());
}

void give_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = gradient_of(parameter, step).to(parameter.scalar_type());
  }
}

AdamWOptions options(double weight_decay) { return AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(weight_decay); }

// Matrices decay, as two parts.
std::vector<Part> parts_of(const std::vector<at::Tensor>& parameters, const Group& group) {
  return {{{parameters[0], parameters[3]}, {{}, {}}, group, options(0.1)},
          {{parameters[1], parameters[2]}, {{}, {}}, group, options(0)}};
}

std::vector<at::Tensor> stepped_by_adamw(at::ScalarType dtype, int steps) {
  std::vector<at::Tensor> parameters = make_parameters(dtype);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Part& part : parts_of(parameters, {})) {
    groups.emplace_back(part.parameters, std::make_unique<AdamWOptions>(part.options));
  }
  torch::optim::AdamW adamw(groups);
  for (int step = 0; step < steps; ++step) {
    give_gradients(parameters, step);
    set_learning_rate(adamw, 0.01 / (step + 1));
    adamw.step();
  }
  return parameters;
}

// Data-parallel ranks alone.
void run_data_ranks(int ranks, const std::function<void(const TrainContext&)>& body) {
  Config config;
  config.pipeline_model_parallel_size = 1;
  config.global_batch_size = 60;
  run_rank_threads(config, ranks, body);
}

class DistributedOptimizerOn : public testing::TestWithParam<int> {};

TEST_P(DistributedOptimizerOn, StepsAsAdamWDoesAndEqualOnAllRanks) {
  const std::vector<at::Tensor> wanted = stepped_by_adamw(at::kDouble, 3);
  run_data_ranks(GetParam(), [&](const TrainContext& context) {
    const std::vector<at::Tensor> parameters = make_parameters(at::kDouble);
    DistributedOptimizer optimizer(parts_of(parameters, context.parallel.of(GroupKind::kData)));
    for (int step = 0; step < 3; ++step) {
      give_gradients(parameters, step);
      set_learning_rate(optimizer, 0.01 / (step + 1));
      optimizer.step();
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i], wanted[i], 1e-12, 1e-14)) << i;
      EXPECT_TRUE(parameters[i].requires_grad());
      at::Tensor others = at::empty({GetParam() * parameters[i].numel()}, at::kDouble);
      at::Tensor mine = parameters[i].detach().reshape({-1}).contiguous();
      if (GetParam() > 1 && mine.numel() > 0) {
        context.parallel.world()->all_gather_single(others, mine)->wait();
        EXPECT_TRUE(at::equal(others, mine.repeat({GetParam()}))) << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DistributedOptimizerOn, testing::Values(1, 2, 3, 5));

TEST(DistributedOptimizer, StateIsDivided) {
  std::mutex mutex;
  std::map<int, std::int64_t> bytes;
  for (const int ranks : {1, 2}) {
    run_data_ranks(ranks, [&](const TrainContext& context) {
      const DistributedOptimizer optimizer(
          parts_of(make_parameters(at::kFloat), context.parallel.of(GroupKind::kData)));
      const std::lock_guard lock(mutex);
      bytes[ranks] = optimizer.state_bytes();
    });
  }
  EXPECT_EQ(bytes[1], (23 + 7) * 3 * 4);
  EXPECT_EQ(bytes[2], (12 + 4) * 3 * 4);
}

// A change below the precision of bfloat16 is not lost: masters keep it.
TEST(DistributedOptimizer, MastersOfBfloat16KeepSmallSteps) {
  const at::Tensor parameter = at::ones({4}, at::kBFloat16).requires_grad_();
  DistributedOptimizer optimizer({{{parameter}, {at::ones({4})}, {}, AdamWOptions(1e-4).weight_decay(0)}});
  for (int step = 0; step < 30; ++step) {
    optimizer.step();
    EXPECT_EQ(parameter[0].item<double>() == 1, step < 19) << step;  // bfloat16's next below 1 is 1 - 2^-8.
  }
}

TEST(DistributedOptimizer, AnUndefinedGradientCountsAsZeros) {
  const at::Tensor parameter = at::ones({4}, at::kDouble).requires_grad_();
  DistributedOptimizer optimizer({{{parameter}, {at::Tensor()}, {}, AdamWOptions(0.1).weight_decay(0.5)}});
  optimizer.step();
  EXPECT_TRUE(at::allclose(parameter, at::full({4}, 0.95, at::kDouble), 1e-15, 0));
}

TEST(DistributedOptimizer, SavesAndLoadsItsSlices) {
  run_data_ranks(2, [&](const TrainContext& context) {
    const Group& group = context.parallel.of(GroupKind::kData);
    const std::vector<at::Tensor> one = make_parameters(at::kBFloat16), other = make_parameters(at::kBFloat16);
    DistributedOptimizer first(parts_of(one, group)), second(parts_of(other, group));
    give_gradients(one, 0);
    first.step();
    std::stringstream file;
    torch::serialize::OutputArchive output;
    first.save(output);
    output.save_to(file);
    torch::serialize::InputArchive input;
    input.load_from(file);
    second.load(input);
    give_gradients(one, 1);
    give_gradients(other, 1);
    first.step();
    second.step();
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(one[i], other[i])) << i;
    }
  });
}

TEST(DistributedOptimizer, RefusesAPartOfTwoDtypes) {
  const at::Tensor one = at::ones({2}).requires_grad_(), other = at::ones({2}, at::kDouble).requires_grad_();
  try {
    DistributedOptimizer({{{one, other}, {{}, {}}, {}, AdamWOptions()}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "[distributed optimizer] a part must have parameters of one dtype, got Float and Double; for example "
                 "two parts");
  }
}

TEST(CompensatedSum, KeepsWhatAPlainSumLoses) {
  const std::vector<double> values{1, 1e100, 1, -1e100};
  EXPECT_EQ(compensated_sum(values.data(), 4), 2);
}

}  // namespace
}  // namespace pretrain_gpt
