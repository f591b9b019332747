#include "plugin/runtime/gradient_norm.h"

#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "plugin/runtime/gradient_reduction.h"
#include "plugin/schedule/placement.h"
#include "tests/runtime/parameter_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

constexpr int kStages = 4;

// Model of four stages whose first and last share an embedding; every rank makes equal tensors of equal gradients.
struct Model {
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> stages{kStages};
  std::vector<at::Tensor> parameters;  // Each once.

  explicit Model(at::ScalarType dtype = at::kDouble) {
    for (int stage = 0; stage < kStages; ++stage) {
      add(stage, "layers." + std::to_string(stage) + ".weight", {7, 5}, dtype);
      add(stage, "layers." + std::to_string(stage) + ".bias", {7}, dtype);
    }
    add(0, "embedding.weight", {11, 3}, dtype);
    stages[kStages - 1].emplace_back("embedding.weight", parameters.back());
  }

  Stages of(const std::vector<int>& held) const {
    Stages result;
    for (int stage : held) {
      result.push_back(stage_of(stage, stages[stage]));
    }
    return result;
  }

 private:
  void add(int stage, const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(parameters.size());
    const at::Tensor gradient = at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
    parameters.push_back(trained(at::ones(sizes, dtype)));
    parameters.back().mutable_grad() = gradient;
    stages[stage].emplace_back(name, parameters.back());
  }
};

Gradients gradients_of(const Stages& stages, const std::map<std::string, at::Tensor>& main_grads = {}) {
  return Gradients(collect_parameters(stages, {}, main_grads), /*set_aside=*/false);
}

double torch_norm(const std::vector<at::Tensor>& parameters) {
  return torch::nn::utils::clip_grad_norm_(parameters, std::numeric_limits<double>::max());
}

struct Layout {
  std::string name;
  Placement placement;
};

class GradientNormOf : public ::testing::TestWithParam<Layout> {};

TEST_P(GradientNormOf, FieldReport49CountsEachLogicalWeightOnce) {
  const Model reference;
  const Placement& placement = GetParam().placement;
  std::vector<double> norms(placement.ranks());
  run_ranks(placement.ranks(), [&](Rank& rank) {
    const Model model;
    const Gradients gradients = gradients_of(model.of(placement.stages_of(rank.index)));
    GradientNorm norm(rank.transport, gradients);
    EXPECT_EQ(norm.size(), reference.parameters.size());
    norms[rank.index] = norm.compute(gradients);
    EXPECT_EQ(norm.compute(gradients), norms[rank.index]) << "the same twice";
  });

  const double expected = torch_norm(reference.parameters);
  EXPECT_NEAR(norms[0], expected, 1e-14 * expected);
  EXPECT_THAT(norms, ::testing::Each(norms[0])) << "equal bits on every rank";

  // And under every layout.
  const Gradients whole = gradients_of(reference.of({0, 1, 2, 3}));
  const std::shared_ptr<Transport> alone = make_loopback(1).at(0);
  EXPECT_EQ(norms[0], GradientNorm(alone, whole).compute(whole));
}

INSTANTIATE_TEST_SUITE_P(Layouts, GradientNormOf,
                         ::testing::Values(Layout{"OneRank", Placement::loop(1, 4)},
                                           Layout{"Loop4", Placement::loop(4)},
                                           Layout{"Looped2x2", Placement::loop(2, 2)},
                                           Layout{"Vee2", Placement::vee(2)},
                                           Layout{"Bidirectional4", Placement::bidirectional(4, 8)}),
                         [](const auto& info) { return info.param.name; });

TEST(GradientNorm, OneRankThatIsNotFiniteIsSeenOnAll) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double kNan = std::nan("");
  struct Row {
    double of_rank_0;
    double of_rank_2;
    double norm;
  };
  for (const Row& row : {Row{1, kInfinity, kInfinity}, Row{1, -kInfinity, kInfinity}, Row{1, kNan, kNan},
                         Row{kInfinity, kNan, kNan}, Row{kInfinity, -kInfinity, kInfinity}}) {
    run_ranks(3, [&](Rank& rank) {
      const at::Tensor weight = trained(at::ones({4}));
      weight.mutable_grad() = at::ones({4});
      weight.mutable_grad()[2] = rank.index == 0 ? row.of_rank_0 : rank.index == 2 ? row.of_rank_2 : 1;
      const Gradients gradients = gradients_of({stage_of(rank.index, {{std::to_string(rank.index), weight}})});
      const double norm = GradientNorm(rank.transport, gradients).compute(gradients);
      EXPECT_TRUE(std::isnan(row.norm) ? std::isnan(norm) : norm == row.norm) << "rank " << rank.index << ": " << norm;
    });
  }
}

// Only rank 0 counts it, but whoever holds NaN must not step alone.
TEST(GradientNorm, ACopyThatOthersCountIsLookedAt) {
  run_ranks(3, [](Rank& rank) {
    const at::Tensor weight = trained(at::ones({4}));
    weight.mutable_grad() = at::full({4}, rank.index == 2 ? std::nan("") : 1.0);
    const Gradients gradients = gradients_of({stage_of(0, {{"weight", weight}})});
    EXPECT_TRUE(std::isnan(GradientNorm(rank.transport, gradients).compute(gradients)));
    weight.mutable_grad() = at::ones({4});
    EXPECT_EQ(GradientNorm(rank.transport, gradients).compute(gradients), 2);
  });
}

TEST(GradientNorm, FieldReport82RanksThatTrainNothingTakePart) {
  run_ranks(4, [](Rank& rank) {
    Stages stages = {stage_of(rank.index, {})};
    const at::Tensor weight = trained(at::ones({2}, at::kDouble));
    if (rank.index == 1) {
      stages = {stage_of(1, {{"frozen", at::ones({2})}})};
    } else if (rank.index == 2) {
      stages = {stage_of(2, {{"weight", weight}, {"without gradient", trained(at::ones({2}))}})};
    }
    Gradients gradients = gradients_of(stages);
    GradientNorm norm(rank.transport, gradients);
    EXPECT_EQ(norm.size(), 2u);
    EXPECT_EQ(norm.compute(gradients), 0) << "before any gradient";

    gradients.begin_step();
    if (rank.index == 2) {
      run_backward(weight, at::tensor({3.0, 4.0}, at::kDouble));
    }
    gradients.finish_step();
    EXPECT_EQ(norm.compute(gradients), 5);
    clip_gradients(gradients, 5, 0.5);
    EXPECT_NEAR(norm.compute(gradients), 0.5, 1e-6);
  });
}

TEST(GradientNorm, EveryRankRefusesOneNameOfTwoShapes) {
  const auto errors = errors_of_ranks(3, [](Rank& rank) {
    const at::Tensor weight = trained(rank.index == 2 ? at::ones({3}) : at::ones({2, 3}));
    GradientNorm(rank.transport, gradients_of({stage_of(rank.index, {{"weight", weight}})}));
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::Optional(std::string(
                          "[gradient_norm] a logical name must mean one parameter on all ranks, got \"weight\" as "
                          "[2, 3] on rank 0 and as [3] on rank 2; let logical_name() name them apart"))));
}

TEST(GradientNorm, NothingToTrainAnywhereIsZero) {
  run_ranks(2, [](Rank& rank) {
    const Gradients gradients = gradients_of({stage_of(rank.index, {})});
    GradientNorm norm(rank.transport, gradients);
    EXPECT_EQ(norm.size(), 0u);
    EXPECT_EQ(norm.compute(gradients), 0);
  });
}

// 2^54 + 1, eight times, rounds to 2^54 each time.
TEST(GradientNorm, TheSumIsCompensated) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (int i = 0; i < 9; ++i) {
    parameters.emplace_back(std::to_string(i), trained(at::ones({1})));
    parameters.back().second.mutable_grad() = at::full({1}, i == 0 ? std::ldexp(1.0, 27) : 1.0);
  }
  const Gradients gradients = gradients_of({stage_of(0, parameters)});
  const double norm = GradientNorm(make_loopback(1).at(0), gradients).compute(gradients);
  EXPECT_EQ(norm, std::sqrt(std::ldexp(1.0, 54) + 8));
  EXPECT_NE(norm, std::ldexp(1.0, 27));
}

// 3e38 squared is no float, and neither is 1e-30 squared.
TEST(GradientNorm, SquaresAreDouble) {
  for (const double value : {3e38, 1e-30}) {
    const at::Tensor weight = trained(at::ones({1}));
    weight.mutable_grad() = at::full({1}, value);
    const Gradients gradients = gradients_of({stage_of(0, {{"weight", weight}})});
    EXPECT_NEAR(GradientNorm(make_loopback(1).at(0), gradients).compute(gradients), value, 1e-7 * value);
  }
}

TEST(GradientNorm, ReadsTheHostsBuffersAndSparseGradients) {
  const at::Tensor weight = trained(at::ones({2}, at::kBFloat16));
  const at::Tensor table = trained(at::ones({4, 1}));
  at::embedding(table, at::tensor({1, 1, 3}, at::kLong), -1, false, /*sparse=*/true).sum().backward();
  const at::Tensor main_grad = at::tensor({2.0, 4.0}, at::kFloat);
  const Gradients gradients =
      gradients_of({stage_of(0, {{"weight", weight}, {"table", table}})}, {{"weight", main_grad}});
  EXPECT_EQ(GradientNorm(make_loopback(1).at(0), gradients).compute(gradients), std::sqrt(4 + 16 + 4 + 1));
  clip_gradients(gradients, 5, 2.5);
  EXPECT_TRUE(at::allclose(main_grad, at::tensor({1.0, 2.0}, at::kFloat), 1e-6));
  EXPECT_TRUE(at::allclose(table.grad().to_dense().flatten(), at::tensor({0.0, 1.0, 0.0, 0.5}, at::kFloat), 1e-6));
}

class ClipGradients : public ::testing::TestWithParam<double> {};

TEST_P(ClipGradients, DoesAsTorchDoes) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Model expected(dtype);
    const Model model(dtype);
    const Gradients gradients = gradients_of(model.of({0, 1, 2, 3}));
    GradientNorm norm(make_loopback(1).at(0), gradients);
    const double before = norm.compute(gradients);
    clip_gradients(gradients, before, GetParam());

    const double relative = dtype == at::kDouble ? 1e-14 : 1e-6;
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(expected.parameters, GetParam()), before, relative * before);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      EXPECT_TRUE(at::allclose(model.parameters[i].grad(), expected.parameters[i].grad(), relative, 0)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(MaxNorms, ClipGradients, ::testing::Values(0.1, 1.0, 12.5, 1e6));

TEST(ClipGradientsAlone, LeavesThemWhereThereIsNothingToClip) {
  const double kNan = std::nan("");
  const double kInfinity = std::numeric_limits<double>::infinity();
  struct Row {
    double norm;
    double max_norm;
  };
  for (const Row& row : {Row{5, 0}, Row{5, 5}, Row{5, 6}, Row{kNan, 1}, Row{kInfinity, 1}}) {
    const at::Tensor weight = trained(at::ones({2}));
    weight.mutable_grad() = at::tensor({3.0, 4.0}, at::kFloat);
    clip_gradients(gradients_of({stage_of(0, {{"weight", weight}})}), row.norm, row.max_norm);
    EXPECT_TRUE(at::equal(weight.grad(), at::tensor({3.0, 4.0}, at::kFloat))) << row.norm << ", " << row.max_norm;
  }
}

}  // namespace
}  // namespace dualpipe
