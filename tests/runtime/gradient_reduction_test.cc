#include "plugin/runtime/gradient_reduction.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <optional>

#include "plugin/runtime/loopback_transport.h"
#include "plugin/schedule/error.h"
#include "tests/runtime/parameter_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Optional;

Gradients gradients_of(const Stages& stages, const std::vector<int>& order,
                       const std::map<std::string, at::Tensor>& main_grads = {}) {
  return Gradients(collect_parameters(stages, order, main_grads), /*set_aside=*/true);
}

// The same on every rank that asks with the same seed.
at::Tensor random(int seed, at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

// What one thread sees of two mirrors whose messages need nobody to wait.
struct Pair {
  Pair() {
    for (int rank = 0; rank < 2; ++rank) {
      reductions.push_back(mirrored_reduction(transports[rank], 1 - rank));
    }
  }
  std::vector<std::shared_ptr<Transport>> transports =
      make_loopback(2, {.timeout = std::chrono::milliseconds(500), .delay = std::chrono::microseconds(0)});
  std::vector<std::unique_ptr<GradientReduction>> reductions;
};

struct Case {
  std::string name;
  at::ScalarType dtype;
  std::optional<at::ScalarType> main_grad;  // Of the weight alone.
  void (*run)(int ranks, const RankBody& body, const RunOptions& options) = run_ranks;
};

constexpr int kSteps = 3;

at::Tensor weight_gradient(const Case& row, int step, int rank) { return random(100 * step + rank, {5, 3}, row.dtype); }
at::Tensor bias_gradient(const Case& row, int step, int rank) { return random(100 * step + rank + 50, {3}, row.dtype); }

// One stage per mirror pair of four ranks, three steps; the weight's and the bias' gradient.
TensorList train(const Case& row, Rank& rank) {
  const int mirror = 3 - rank.index;
  const int stage = std::min(rank.index, mirror);
  const at::Tensor weight = trained(at::ones({5, 3}, row.dtype));
  const at::Tensor bias = trained(at::ones({3}, row.dtype));
  std::map<std::string, at::Tensor> main_grads;
  if (row.main_grad) {
    main_grads["weight"] = at::zeros({5, 3}, *row.main_grad);
  }
  Gradients gradients = gradients_of({stage_of(stage, {{"weight", weight}, {"bias", bias}})}, {stage}, main_grads);
  const auto reduction = mirrored_reduction(rank.transport, mirror);
  for (int step = 0; step < kSteps; ++step) {
    gradients.begin_step();
    run_backward(weight, weight_gradient(row, step, rank.index));
    run_backward(bias, bias_gradient(row, step, rank.index));
    gradients.collect(stage);
    reduction->start(stage, gradients);
    reduction->finish(gradients);
    gradients.finish_step();
  }
  return {gradients.gradient(0), gradients.gradient(1)};
}

class MirroredReductionOf : public ::testing::TestWithParam<Case> {};

// With no tolerance: the sums of three steps are rounded, and both copies have to round alike.
TEST_P(MirroredReductionOf, CopiesStayEqualToTheBit) {
  const Case& row = GetParam();
  std::vector<TensorList> results(4);
  row.run(4, [&](Rank& rank) { results[rank.index] = train(row, rank); }, {.delay = std::chrono::microseconds(200)});

  for (const int rank : {0, 1}) {
    at::Tensor weight = at::zeros({5, 3}, row.main_grad.value_or(row.dtype));
    at::Tensor bias = at::zeros({3}, row.dtype);
    for (int step = 0; step < kSteps; ++step) {
      weight +=
          weight_gradient(row, step, rank).to(weight.dtype()) + weight_gradient(row, step, 3 - rank).to(weight.dtype());
      bias += bias_gradient(row, step, rank) + bias_gradient(row, step, 3 - rank);
    }
    for (const int copy : {rank, 3 - rank}) {
      EXPECT_TRUE(at::equal(results[copy][0], weight)) << "rank " << copy;
      EXPECT_TRUE(at::equal(results[copy][1], bias)) << "rank " << copy;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MirroredReductionOf,
                         ::testing::Values(Case{"Double", at::kDouble, {}}, Case{"Float", at::kFloat, {}},
                                           Case{"Bf16", at::kBFloat16, {}},
                                           Case{"Bf16WithMainGrad", at::kBFloat16, at::kFloat},
                                           Case{"FloatOverGloo", at::kFloat, {}, run_gloo_ranks},
                                           Case{"Bf16OverGloo", at::kBFloat16, {}, run_gloo_ranks},
                                           Case{"Bf16WithMainGradOverGloo", at::kBFloat16, at::kFloat, run_gloo_ranks}),
                         [](const auto& info) { return info.param.name; });

TEST(MirroredReduction, StartNeverWaitsForThePeerAndSeveralStagesMayBeUnderWay) {
  Pair pair;
  std::vector<Gradients> gradients;
  for (int rank = 0; rank < 2; ++rank) {
    const at::Tensor a = trained(at::ones({2}));
    const at::Tensor b = trained(at::ones({3}));
    gradients.push_back(gradients_of({stage_of(0, {{"a", a}}), stage_of(1, {{"b", b}})}, {1, 0}));
    gradients[rank].begin_step();
    run_backward(a, at::full({2}, 1 + rank));
    run_backward(b, at::full({3}, 10 * (1 + rank)));
    pair.reductions[rank]->start(1, gradients[rank]);
    pair.reductions[rank]->start(0, gradients[rank]);
  }
  for (int rank : {1, 0}) {
    pair.reductions[rank]->finish(gradients[rank]);
    gradients[rank].finish_step();
    EXPECT_TRUE(at::equal(gradients[rank].gradient(0), at::full({2}, 3)));
    EXPECT_TRUE(at::equal(gradients[rank].gradient(1), at::full({3}, 30)));
  }
}

TEST(MirroredReduction, OneSideAloneCountsAsTheSumAndNeitherStaysUndefined) {
  Pair pair;
  std::vector<Gradients> gradients;
  for (int rank = 0; rank < 2; ++rank) {
    const at::Tensor lower = trained(at::ones({2}));
    const at::Tensor upper = trained(at::ones({2, 2}));
    const at::Tensor neither = trained(at::ones({2}));
    gradients.push_back(gradients_of({stage_of(0, {{"lower", lower}, {"upper", upper}, {"neither", neither}})}, {0}));
    gradients[rank].begin_step();
    run_backward(rank == 0 ? lower : upper, at::full(rank == 0 ? at::IntArrayRef{2} : at::IntArrayRef{2, 2}, 7.0));
    pair.reductions[rank]->start(0, gradients[rank]);
  }
  for (int rank = 0; rank < 2; ++rank) {
    pair.reductions[rank]->finish(gradients[rank]);
    EXPECT_TRUE(at::equal(gradients[rank].step_gradient(0), at::full({2}, 7.0)));
    EXPECT_TRUE(at::equal(gradients[rank].step_gradient(1), at::full({2, 2}, 7.0)));
    EXPECT_FALSE(gradients[rank].step_gradient(2).defined());
    gradients[rank].finish_step();
    EXPECT_FALSE(gradients[rank].gradient(2).defined());
  }
}

// Mixed dtypes, other strides, no dimension, no element.
TEST(MirroredReduction, TakesParametersOfEveryForm) {
  Pair pair;
  std::vector<Gradients> gradients;
  const auto gradient_of = [](int rank, const at::Tensor& parameter) {
    return at::arange(parameter.numel(), parameter.options().requires_grad(false)).view(parameter.sizes()) * (rank + 1);
  };
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<std::pair<std::string, at::Tensor>> parameters = {
        {"images", trained(at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast))},
        {"double", trained(at::ones({3}, at::kDouble))},
        {"transposed", at::ones({3, 2}).t().requires_grad_()},
        {"scalar", trained(at::ones({}))},
        {"empty", trained(at::ones({0, 4}))},
        {"half", trained(at::ones({3}, at::kHalf))},
    };
    gradients.push_back(gradients_of({stage_of(0, parameters)}, {0}));
    gradients[rank].begin_step();
    for (const auto& [name, parameter] : parameters) {
      run_backward(parameter, gradient_of(rank, parameter));
    }
    pair.reductions[rank]->start(0, gradients[rank]);
  }
  for (int rank = 0; rank < 2; ++rank) {
    pair.reductions[rank]->finish(gradients[rank]);
    gradients[rank].finish_step();
    for (std::size_t i = 0; i < 6; ++i) {
      const StageParameter& parameter = gradients[rank].parameters()[i];
      EXPECT_TRUE(at::equal(gradients[rank].gradient(i), gradient_of(2, parameter.parameter))) << parameter.name;
      EXPECT_EQ(gradients[rank].gradient(i).scalar_type(), parameter.parameter.scalar_type()) << parameter.name;
    }
  }
}

TEST(MirroredReduction, ATiedWeightIsReducedOnceWithTheLaterStage) {
  Pair pair;
  std::vector<Gradients> gradients;
  for (int rank = 0; rank < 2; ++rank) {
    const at::Tensor tied = trained(at::ones({2}));
    gradients.push_back(
        gradients_of({stage_of(rank, {{"embedding", tied}}), stage_of(1 - rank, {{"embedding", tied}})}, {1, 0}));
    gradients[rank].begin_step();
    run_backward(tied, at::full({2}, 1 + rank));
    pair.reductions[rank]->start(1, gradients[rank]);
    run_backward(tied, at::full({2}, 10 * (1 + rank)));
    pair.reductions[rank]->start(0, gradients[rank]);
  }
  for (int rank = 0; rank < 2; ++rank) {
    pair.reductions[rank]->finish(gradients[rank]);
    gradients[rank].finish_step();
    ASSERT_EQ(gradients[rank].parameters().size(), 1u);
    EXPECT_TRUE(at::equal(gradients[rank].gradient(0), at::full({2}, 33)));
  }
}

TEST(MirroredReduction, StagesWithoutParametersMoveNothing) {
  Pair pair;
  Gradients gradients = gradients_of({stage_of(0, {}), stage_of(1, {{"frozen", at::ones({2})}})}, {1, 0});
  gradients.begin_step();
  pair.reductions[0]->start(1, gradients);
  pair.reductions[0]->start(0, gradients);
  pair.reductions[0]->finish(gradients);  // Would time out if it waited for anything.
  gradients.finish_step();
  EXPECT_TRUE(gradients.parameters().empty());
}

TEST(MirroredReduction, RefusesSparseGradientsByName) {
  Pair pair;
  const at::Tensor table = trained(at::ones({4, 2}));
  Gradients gradients = gradients_of({stage_of(0, {{"embedding.weight", table}})}, {0});
  gradients.begin_step();
  at::embedding(table, at::tensor({1, 3}, at::kLong), -1, false, /*sparse=*/true).sum().backward();
  try {
    pair.reductions[0]->start(0, gradients);
    FAIL() << "no error";
  } catch (const ScheduleError& error) {
    EXPECT_STREQ(
        error.what(),
        "[mirrored_reduction] gradients must be dense, got a sparse one for \"embedding.weight\"; an embedding "
        "with sparse=false works");
  }
}

TEST(MirroredReduction, ALostMirrorEndsFinishWithTheTransportsError) {
  Pair pair;
  const at::Tensor weight = trained(at::ones({2}));
  Gradients gradients = gradients_of({stage_of(0, {{"weight", weight}})}, {0});
  gradients.begin_step();
  run_backward(weight, at::ones({2}));
  pair.reductions[0]->start(0, gradients);
  pair.transports[0]->abort("rank 1 is gone");
  try {
    pair.reductions[0]->finish(gradients);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 is gone"));
  }
}

TEST(NoReduction, LeavesGradientsAlone) {
  const at::Tensor weight = trained(at::ones({2}));
  Gradients gradients(collect_parameters({stage_of(0, {{"weight", weight}})}, {0}, {}), /*set_aside=*/false);
  const auto reduction = no_reduction();
  gradients.begin_step();
  run_backward(weight, at::full({2}, 4));
  reduction->start(0, gradients);
  reduction->finish(gradients);
  gradients.finish_step();
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::full({2}, 4)));
}

TEST(CheckMirrors, EqualOnesPass) {
  run_ranks(4, [](Rank& rank) {
    const int stage = std::min(rank.index, 3 - rank.index);
    const Gradients gradients =
        gradients_of({stage_of(stage, {{"w" + std::to_string(stage), trained(at::ones({2}))}})}, {stage});
    EXPECT_NO_THROW(check_mirrors(*rank.transport, 3 - rank.index, gradients));
  });
}

TEST(CheckMirrors, EveryRankRefusesMirrorsThatDiffer) {
  struct Row {
    std::string name;
    at::Tensor lower;  // Of ranks 1 and 2.
    at::Tensor upper;
    std::string message;
  };
  const std::vector<Row> rows = {
      {"frozen on one side", trained(at::ones({2})), at::ones({2}),
       "[mirrored_reduction] ranks 1 and 2 hold the same stages and must train the same parameters, got \"w\" (stage "
       "1, "
       "[2], Float) on rank 1 alone and nothing on rank 2 alone; freeze and build both alike"},
      {"another shape", trained(at::ones({2})), trained(at::ones({2, 1})),
       "[mirrored_reduction] ranks 1 and 2 hold the same stages and must train the same parameters, got \"w\" (stage "
       "1, "
       "[2], Float) on rank 1 alone and \"w\" (stage 1, [2, 1], Float) on rank 2 alone; freeze and build both alike"},
      {"another dtype", trained(at::ones({2})), trained(at::ones({2}, at::kBFloat16)),
       "[mirrored_reduction] ranks 1 and 2 hold the same stages and must train the same parameters, got \"w\" (stage "
       "1, "
       "[2], Float) on rank 1 alone and \"w\" (stage 1, [2], BFloat16) on rank 2 alone; freeze and build both alike"},
  };
  for (const Row& row : rows) {
    const auto errors = errors_of_ranks(4, [&](Rank& rank) {
      const at::Tensor other = trained(at::ones({3}));
      const bool outer = rank.index == 0 || rank.index == 3;
      const int stage = outer ? 0 : 1;
      const at::Tensor own = outer ? other : rank.index == 1 ? row.lower : row.upper;
      check_mirrors(*rank.transport, 3 - rank.index, gradients_of({stage_of(stage, {{"w", own}})}, {stage}));
    });
    EXPECT_THAT(errors, Each(Optional(row.message))) << row.name;
  }
}

}  // namespace
}  // namespace dualpipe
