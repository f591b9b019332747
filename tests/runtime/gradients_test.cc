#include "plugin/runtime/gradients.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <stdexcept>

#include "plugin/schedule/error.h"
#include "tests/runtime/parameter_stage.h"

namespace dualpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Small integers, so that every order of addition gives the same bits.
at::Tensor integers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randint(-8, 9, sizes, at::TensorOptions().dtype(dtype));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> names_of(const std::vector<StageParameter>& parameters) {
  std::vector<std::string> names;
  for (const StageParameter& parameter : parameters) {
    names.push_back(parameter.name);
  }
  return names;
}

// What is trained.

TEST(CollectParameters, LaterReducedStagesComeFirstAndStagesThatAreNotReducedLast) {
  const Stages stages = {stage_of(0, {{"a", trained(at::ones({2}))}}), stage_of(3, {{"d", trained(at::ones({2}))}}),
                         stage_of(7, {{"h", trained(at::ones({2}))}})};
  EXPECT_THAT(names_of(collect_parameters(stages, {0, 3}, {})), ElementsAre("d", "a", "h"));
  EXPECT_THAT(names_of(collect_parameters(stages, {3, 0}, {})), ElementsAre("a", "d", "h"));
}

TEST(CollectParameters, MirrorsAgreeOnTheOrderWhateverTheOrderOfTheirModules) {
  const auto first = stage_of(0, {{"b", trained(at::ones({2}))}, {"a", trained(at::ones({3}))}});
  const auto last = stage_of(3, {{"d", trained(at::ones({2}))}});
  EXPECT_EQ(names_of(collect_parameters({first, last}, {3, 0}, {})),
            names_of(collect_parameters({last, first}, {3, 0}, {})));
}

TEST(CollectParameters, FrozenOnesAreLeftOutAndStagesMayHaveNone) {
  const Stages stages = {stage_of(0, {{"frozen", at::ones({2})}, {"live", trained(at::ones({2}))}}), stage_of(1, {}),
                         stage_of(2, {{"frozen too", at::ones({2})}})};
  EXPECT_THAT(names_of(collect_parameters(stages, {2, 1, 0}, {})), ElementsAre("live"));
  EXPECT_THAT(collect_parameters({stage_of(1, {})}, {1}, {}), IsEmpty());
}

TEST(CollectParameters, ATiedWeightIsOneParameterOfTheStageThatIsReducedLater) {
  const at::Tensor tied = trained(at::ones({4, 2}));
  const Stages stages = {stage_of(0, {{"embedding", tied}, {"a", trained(at::ones({2}))}}),
                         stage_of(3, {{"d", trained(at::ones({2}))}, {"head", tied}})};

  const std::vector<StageParameter> reduced_last_first = collect_parameters(stages, {3, 0}, {});
  EXPECT_THAT(names_of(reduced_last_first), ElementsAre("embedding", "a", "d"));
  EXPECT_EQ(reduced_last_first[0].stage, 0);
  EXPECT_THAT(reduced_last_first[0].shared_with, ElementsAre(3));

  // The name is that of the lowest stage, whichever is reduced last.
  const std::vector<StageParameter> reduced_first_first = collect_parameters(stages, {0, 3}, {});
  EXPECT_THAT(names_of(reduced_first_first), ElementsAre("d", "embedding", "a"));
  EXPECT_EQ(reduced_first_first[1].stage, 3);
  EXPECT_THAT(reduced_first_first[1].shared_with, ElementsAre(0));
}

TEST(CollectParameters, AWeightUsedTwiceInAStageIsOneParameterOfThatStageAlone) {
  const at::Tensor twice = trained(at::ones({2}));
  const std::vector<StageParameter> parameters =
      collect_parameters({stage_of(1, {{"first", twice}, {"second", twice}})}, {1}, {});
  EXPECT_THAT(names_of(parameters), ElementsAre("first"));
  EXPECT_THAT(parameters[0].shared_with, IsEmpty());
}

TEST(CollectParameters, RefusesOneNameForTwoTensors) {
  const auto collect = [](at::Tensor a, at::Tensor b) {
    collect_parameters({stage_of(0, {{"embedding", trained(a)}}), stage_of(3, {{"embedding", trained(b)}})}, {3, 0},
                       {});
  };
  EXPECT_EQ(error_of([&] {
              collect(at::ones({8, 4}), at::ones({6, 4}));
            }),
            "[gradients] a logical name must mean one tensor of a rank, got two of the name \"embedding\": [8, 4] in "
            "stage 0 and [6, 4] in stage 3; share the tensor, or let logical_name() name them apart");
  EXPECT_EQ(error_of([&] {
              collect(at::ones({8, 4}), at::ones({8, 4}));
            }),
            "[gradients] a logical name must mean one tensor of a rank, got two of the name \"embedding\": [8, 4] in "
            "stage 0 and [8, 4] in stage 3; share the tensor, or let logical_name() name them apart");
}

TEST(CollectParameters, RefusesBuffersThatFitNoParameter) {
  const Stages stages = {stage_of(0, {{"layer.weight", trained(at::ones({2, 3}))}, {"frozen", at::ones({2})}})};
  struct Case {
    std::string name;
    std::map<std::string, at::Tensor> main_grads;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"a name that is near",
       {{"layer.wieght", at::zeros({2, 3})}},
       "[gradients] main_grads must name parameters of this rank's stages, got \"layer.wieght\"; the nearest is "
       "\"layer.weight\""},
      {"a name that is not",
       {{"?", at::zeros({2, 3})}},
       "[gradients] main_grads must name parameters of this rank's stages, got \"?\""},
      {"another shape",
       {{"layer.weight", at::zeros({3, 2})}},
       "[gradients] main_grad of \"layer.weight\" must be [2, 3] on cpu as the parameter is, got [3, 2] on cpu"},
      {"integers",
       {{"layer.weight", at::zeros({2, 3}, at::kInt)}},
       "[gradients] main_grad of \"layer.weight\" must be a dense floating tensor, got CPUIntType; torch.float32 "
       "works"},
      {"nothing",
       {{"layer.weight", at::Tensor()}},
       "[gradients] main_grad of \"layer.weight\" must be a dense floating tensor, got an undefined one; "
       "torch.float32 works"},
      {"frozen parameters may have one", {{"frozen", at::zeros({2})}}, "no error"},
  };
  for (const Case& row : cases) {
    EXPECT_EQ(error_of([&] { collect_parameters(stages, {0}, row.main_grads); }), row.message) << row.name;
  }
}

// Where gradients go.

struct Sink {
  bool set_aside;
  bool main_grad;
};

class GradientsOfEverySink : public ::testing::TestWithParam<Sink> {
 protected:
  Gradients make(const at::Tensor& parameter) const {
    std::map<std::string, at::Tensor> main_grads;
    if (GetParam().main_grad) {
      main_grads["w"] = at::zeros(parameter.sizes(), at::kFloat);
    }
    return Gradients(collect_parameters({stage_of(0, {{"w", parameter}})}, {0}, main_grads), GetParam().set_aside);
  }
};

TEST_P(GradientsOfEverySink, FieldReport04StepsAddUpAndAreNeverRescaled) {
  const at::Tensor parameter = trained(at::ones({3, 2}));
  Gradients gradients = make(parameter);
  at::Tensor sum = at::zeros({3, 2});
  for (int step = 0; step < 3; ++step) {
    gradients.begin_step();
    at::Tensor of_step = at::zeros({3, 2});
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
      const at::Tensor gradient = integers({3, 2});
      of_step += gradient;
      run_backward(parameter, gradient);
      gradients.collect(0);
      if (GetParam().set_aside) {
        EXPECT_TRUE(at::equal(gradients.step_gradient(0), of_step));
      }
    }
    gradients.finish_step();
    sum += of_step;
    EXPECT_TRUE(at::equal(gradients.gradient(0), sum)) << "step " << step;
  }
  EXPECT_EQ(parameter.grad().defined(), !GetParam().main_grad);
}

TEST_P(GradientsOfEverySink, AStepThatGivesNothingLeavesEarlierGradientsAlone) {
  const at::Tensor parameter = trained(at::ones({2}));
  Gradients gradients = make(parameter);
  gradients.begin_step();
  run_backward(parameter, at::ones({2}) * 3);
  gradients.collect(0);
  gradients.finish_step();
  gradients.begin_step();
  gradients.collect(0);
  gradients.finish_step();
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 3));
}

TEST_P(GradientsOfEverySink, TheSinkKeepsItsMemory) {
  const at::Tensor parameter = trained(at::ones({2}));
  Gradients gradients = make(parameter);
  const void* memory = nullptr;
  for (int step = 0; step < 3; ++step) {
    gradients.begin_step();
    run_backward(parameter, at::ones({2}));
    gradients.collect(0);
    gradients.finish_step();
    if (step == 0) {
      memory = gradients.gradient(0).const_data_ptr();
    }
  }
  EXPECT_EQ(gradients.gradient(0).const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 3));
}

TEST_P(GradientsOfEverySink, WhatTheHostLeftInGradCountsOnce) {
  const at::Tensor parameter = trained(at::ones({2}));
  Gradients gradients = make(parameter);
  parameter.mutable_grad() = at::ones({2}) * 5;
  gradients.begin_step();
  run_backward(parameter, at::ones({2}));
  gradients.collect(0);
  gradients.finish_step();
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 6));

  // Some hosts point .grad at the buffer for the optimizer's sake.
  parameter.mutable_grad() = gradients.gradient(0);
  gradients.begin_step();
  run_backward(parameter, at::ones({2}));
  gradients.collect(0);
  gradients.finish_step();
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 7));
}

TEST_P(GradientsOfEverySink, NothingOfAGraphIsKept) {
  const at::Tensor parameter = trained(at::ones({2}));
  Gradients gradients = make(parameter);
  for (int step = 0; step < 2; ++step) {
    gradients.begin_step();
    (parameter * parameter).sum().backward({}, /*retain_graph=*/false, /*create_graph=*/false);
    gradients.collect(0);
    gradients.finish_step();
  }
  EXPECT_FALSE(gradients.gradient(0).requires_grad());
  EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 4));
}

INSTANTIATE_TEST_SUITE_P(Sinks, GradientsOfEverySink,
                         ::testing::Values(Sink{false, false}, Sink{false, true}, Sink{true, false}, Sink{true, true}),
                         [](const auto& info) {
                           return std::string(info.param.set_aside ? "SetAside" : "InPlace") +
                                  (info.param.main_grad ? "IntoMainGrad" : "IntoGrad");
                         });

TEST(Gradients, UnusedParametersKeepAnUndefinedGradient) {
  for (const bool set_aside : {false, true}) {
    const at::Tensor used = trained(at::ones({2}));
    const at::Tensor unused = trained(at::ones({2}));
    Gradients gradients(collect_parameters({stage_of(0, {{"used", used}, {"unused", unused}})}, {0}, {}), set_aside);
    for (int step = 0; step < 2; ++step) {
      gradients.begin_step();
      run_backward(used, at::ones({2}));
      gradients.collect(0);
      gradients.finish_step();
    }
    EXPECT_TRUE(at::equal(gradients.gradient(0), at::ones({2}) * 2));
    EXPECT_FALSE(gradients.gradient(1).defined());
  }
}

// 1 + 512 / 512 in bf16 stays 1, since 1/512 is below half a unit in its last place.
TEST(Gradients, Bf16WeightsAddUpExactlyInTheirFp32MainGrad) {
  for (const bool set_aside : {false, true}) {
    const at::Tensor weight = trained(at::ones({4}, at::kBFloat16));
    const at::Tensor main_grad = at::zeros({4});
    Gradients gradients(collect_parameters({stage_of(0, {{"w", weight}})}, {0}, {{"w", main_grad}}), set_aside);
    gradients.begin_step();
    run_backward(weight, at::ones({4}, at::kBFloat16));
    gradients.collect(0);
    for (int micro_batch = 0; micro_batch < 512; ++micro_batch) {
      run_backward(weight, at::full({4}, 1.0 / 512, at::kBFloat16));
      gradients.collect(0);
    }
    gradients.finish_step();
    EXPECT_TRUE(at::equal(main_grad, at::full({4}, 2.0))) << main_grad;
    EXPECT_TRUE(gradients.gradient(0).is_same(main_grad));
  }
}

TEST(Gradients, ATiedWeightIsCollectedAfterEachStageThatUsesIt) {
  const at::Tensor tied = trained(at::ones({2}));
  const at::Tensor main_grad = at::zeros({2});
  const Stages stages = {stage_of(0, {{"embedding", tied}}), stage_of(3, {{"embedding", tied}}), stage_of(5, {})};
  Gradients gradients(collect_parameters(stages, {3, 0}, {{"embedding", main_grad}}), /*set_aside=*/false);
  gradients.begin_step();
  int expected = 0;
  for (const int stage : {3, 0, 3}) {
    run_backward(tied, at::ones({2}));
    gradients.collect(5);
    EXPECT_TRUE(at::equal(main_grad, at::ones({2}) * expected));
    gradients.collect(stage);
    EXPECT_TRUE(at::equal(main_grad, at::ones({2}) * ++expected));
  }
  gradients.finish_step();
  EXPECT_THAT(gradients.indices_of(0), ElementsAre(0));
  EXPECT_THAT(gradients.indices_of(3), IsEmpty());
}

TEST(Gradients, SparseGradientsGoIntoADenseBuffer) {
  for (const bool set_aside : {false, true}) {
    const at::Tensor table = trained(at::ones({4, 2}));
    const at::Tensor main_grad = at::zeros({4, 2}, at::kDouble);
    Gradients gradients(collect_parameters({stage_of(0, {{"table", table}})}, {0}, {{"table", main_grad}}), set_aside);
    gradients.begin_step();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      at::embedding(table, at::tensor({1, 3, 1}, at::kLong), -1, false, /*sparse=*/true).sum().backward();
      gradients.collect(0);
    }
    gradients.finish_step();
    EXPECT_TRUE(at::equal(main_grad, at::tensor({0, 0, 4, 4, 0, 0, 2, 2}, at::kDouble).view({4, 2})));
  }
}

TEST(Gradients, ARankWithNothingToTrainTakesEveryCall) {
  Gradients gradients(collect_parameters({stage_of(0, {}), stage_of(1, {{"frozen", at::ones({2})}})}, {1, 0}, {}),
                      true);
  gradients.begin_step();
  gradients.collect(0);
  gradients.finish_step();
  EXPECT_THAT(gradients.parameters(), IsEmpty());
  EXPECT_THAT(gradients.indices_of(1), IsEmpty());
}

TEST(Gradients, StepsBeginAndFinishInTurn) {
  Gradients gradients({}, /*set_aside=*/false);
  EXPECT_EQ(error_of([&] { gradients.finish_step(); }), "broken invariant: a step is begun before it is finished");
  gradients.begin_step();
  EXPECT_EQ(error_of([&] { gradients.begin_step(); }),
            "broken invariant: a step's gradients are finished before the next step begins");
  EXPECT_EQ(error_of([&] { gradients.step_gradient(0); }),
            "broken invariant: a step's own gradients are known where earlier ones are set aside");
}

}  // namespace
}  // namespace dualpipe
