#include "plugin/runtime/stage_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

std::vector<std::string> logical_names(const StageModule& stage, int index) {
  std::vector<std::string> names;
  for (const auto& parameter : stage.named_parameters()) names.push_back(stage.logical_name(index, parameter.key()));
  return names;
}

struct OwnStage : StageModule {
  OwnStage() { register_module("fc", fc); }
  TensorList forward(const TensorList& inputs) override { return {fc(inputs[0]), inputs[1]}; }
  torch::nn::Linear fc{2, 3};
};

TEST(StageModule, NamesParametersByStage) {
  EXPECT_THAT(logical_names(OwnStage(), 3), ElementsAre("stage3.fc.weight", "stage3.fc.bias"));
  EXPECT_FALSE(OwnStage().overlapped_forward_backward());
}

TEST(MakeStage, TakesPhases) {
  torch::nn::Linear linear(2, 3);
  Phase phase;
  phase.spec.name = "all";
  phase.compute = [linear](const TensorList& t, PhaseContext&) mutable { return TensorList{linear(t.at(0))}; };
  const auto forward = [linear](const TensorList& t) mutable { return TensorList{linear(t.at(0))}; };
  EXPECT_TRUE(OwnStage().phases().empty());
  EXPECT_TRUE(make_stage(linear.ptr(), forward)->phases().empty());
  const std::vector<Phase> phases = make_stage(linear.ptr(), forward, {}, {phase})->phases();
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(phases[0].spec, phase.spec);
}

TEST(MakeStage, WrapsAModuleOfOneTensor) {
  torch::nn::Linear linear(2, 3);
  const auto stage = make_stage(linear.ptr());
  const at::Tensor x = at::rand({4, 2});
  const TensorList outputs = stage->forward({x});
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(at::equal(outputs[0], at::linear(x, linear->weight, linear->bias)));
  EXPECT_THAT(logical_names(*stage, 1), ElementsAre("stage1.weight", "stage1.bias"));
  EXPECT_TRUE(stage->parameters()[0].is_same(linear->weight));
  EXPECT_FALSE(stage->overlapped_forward_backward());
}

TEST(MakeStage, WrapsASequence) {
  torch::nn::Sequential layers(torch::nn::Linear(2, 3), torch::nn::GELU(), torch::nn::Linear(3, 1));
  const auto stage = make_stage(layers.ptr());
  EXPECT_EQ(stage->forward({at::rand({4, 2})})[0].sizes(), (std::vector<std::int64_t>{4, 1}));
  EXPECT_THAT(logical_names(*stage, 0),
              ElementsAre("stage0.0.weight", "stage0.0.bias", "stage0.2.weight", "stage0.2.bias"));
}

TEST(MakeStage, WrapsAnythingByWayOfAFunction) {
  torch::nn::Linear linear(2, 3);
  const OverlapHook hook = [](auto&&...) { return OverlapResult{}; };
  const auto stage = make_stage(
      linear.ptr(),
      [module = linear.ptr()](const TensorList& in) {
        return TensorList{module->forward(in[0]), in[1]};
      },
      hook);
  const at::Tensor ids = at::tensor({1, 2});
  EXPECT_TRUE(stage->forward({at::rand({4, 2}), ids})[1].is_same(ids));
  EXPECT_TRUE(stage->overlapped_forward_backward());
}

TEST(MakeStage, PassesModesOnToTheModule) {
  torch::nn::Dropout dropout(0.5);
  const auto stage = make_stage(dropout.ptr());
  stage->eval();
  EXPECT_FALSE(dropout->is_training());
  EXPECT_TRUE(at::equal(stage->forward({at::ones({8})})[0], at::ones({8})));
}

TEST(MakeStage, RefusesOtherListsForAModuleOfOneTensor) {
  const auto stage = make_stage(torch::nn::Linear(2, 3).ptr());
  EXPECT_THAT(
      [&] {
        stage->forward({at::rand({4, 2}), at::rand({4, 2})});
      },
      ThrowsMessage<ScheduleError>("[make_stage] a wrapped module takes 1 tensor, got 2; give make_stage a "
                                   "function of the list as well"));
  EXPECT_THROW(stage->forward({}), ScheduleError);
}

TEST(MakeStage, RefusesNullModulesAndEmptyFunctions) {
  EXPECT_THAT([] { make_stage(std::shared_ptr<torch::nn::LinearImpl>()); },
              ThrowsMessage<ScheduleError>("[make_stage] a module is wanted, got a null pointer"));
  EXPECT_THAT(
      [] { make_stage(torch::nn::Linear(2, 3).ptr(), nullptr); },
      ThrowsMessage<ScheduleError>("[make_stage] a function from inputs to outputs is wanted, got an empty one"));
}

}  // namespace
}  // namespace dualpipe
