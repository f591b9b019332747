// The phases of a mixture of experts against the same as one function.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "examples/pretrain_gpt/model/run_phases.h"
#include "tests/pretrain_gpt/moe_case.h"

namespace pretrain_gpt {
namespace {

// One phase's inputs, cut from the graph, and its outputs.
struct Ran {
  Tensors inputs, outputs;
};

Tensors cut(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors) {
    leaves.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  }
  return leaves;
}

// Gradients of the inputs; undefined where there is none.
Tensors compute_backward(const Ran& ran, const Tensors& gradients) {
  Tensors roots, root_gradients, result;
  for (std::size_t i = 0; i < ran.outputs.size(); ++i) {
    if (ran.outputs[i].requires_grad() && gradients[i].defined()) {
      roots.push_back(ran.outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  torch::autograd::backward(roots, root_gradients);
  for (const at::Tensor& input : ran.inputs) {
    result.push_back(input.grad());
  }
  return result;
}

struct ByPhases {
  at::Tensor output, input_gradient, residual_gradient;
};

// As a schedule does it: one phase after the other, each on leaves, and backward through them in reverse.
ByPhases run_by_phases(MoeMlp& moe, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& probe) {
  std::vector<ModelPhase> phases = moe.phases("3", 1);
  std::vector<PhaseState> states(phases.size());
  std::vector<Ran> ran;
  Ran route{cut({residual, x}), {}};
  route.outputs = moe.route(route.inputs[0], route.inputs[1]);
  Tensors list = route.outputs;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    ran.push_back({cut(list), {}});
    ran[i].outputs = phases[i].compute ? phases[i].compute(ran[i].inputs, states[i])
                                       : phases[i].exchange(ran[i].inputs, states[i])->wait();
    list = ran[i].outputs;
  }
  Ran finish{cut(list), {}};
  finish.outputs = {finish.inputs[0] + moe.finish(finish.inputs)};

  Tensors gradients = compute_backward(finish, {probe});
  for (std::size_t i = phases.size(); i-- > 0;) {
    if (phases[i].compute) {
      gradients = compute_backward(ran[i], gradients);
    } else if (phases[i].exchange_back) {
      gradients = phases[i].exchange_back(gradients, states[i])->wait();
    } else {
      gradients.resize(ran[i].inputs.size());
    }
  }
  gradients = compute_backward(route, gradients);
  return {finish.outputs[0].detach(), gradients[1], gradients[0]};
}

// Those of experts without tokens may be undefined.
void expect_equal_gradients(const MoeMlp& got, const MoeMlp& wanted) {
  for (const auto& item : wanted.named_parameters()) {
    const at::Tensor one = item.value().grad(), other = got.named_parameters()[item.key()].grad();
    ASSERT_EQ(other.defined(), one.defined()) << item.key();
    EXPECT_TRUE(!one.defined() || at::equal(other, one)) << item.key();
  }
}

class MoePhasesTest : public testing::TestWithParam<MoeCase> {};

TEST_P(MoePhasesTest, AreForwardAndItsBackward) {
  const MoeCase& test = GetParam();
  const Config config = config_of(test);
  run_test_ranks(test.division.world, [&](const TestRank& rank) {
    const ModelParallel parallel = groups_of(test.division, rank);
    const int data = test.division.data_index(rank.rank);
    const at::Tensor x = part_of_sequence(input_of(config, data), parallel).clone().requires_grad_();
    const at::Tensor residual = (x.detach() * 0.5).requires_grad_();
    const at::Tensor probe = part_of_sequence(probe_of(config, data), parallel).contiguous();

    const auto whole = make_moe(test, parallel), in_phases = make_moe(test, parallel);
    const at::Tensor output = residual + whole->forward(x);
    (output * probe).sum().backward();
    const ByPhases by_phases = run_by_phases(*in_phases, x.detach().requires_grad_(), residual, probe);

    EXPECT_TRUE(at::equal(by_phases.output, output.detach()));
    EXPECT_TRUE(at::equal(by_phases.residual_gradient, residual.grad()));
    EXPECT_LT(relative_distance(by_phases.input_gradient, x.grad()), 1e-14);
    expect_equal_gradients(*in_phases, *whole);
  });
}

INSTANTIATE_TEST_SUITE_P(Divisions, MoePhasesTest,
                         testing::Values(MoeCase{kAlone}, MoeCase{kEp2}, MoeCase{kEp4, Choices::kLastHalfGetsNone},
                                         MoeCase{kEp2, Choices::kOneGetsAll, 1, 0}, MoeCase{kTp2Ep2},
                                         MoeCase{kTp2SequenceEp2}, MoeCase{kEtp1Ep4}),
                         case_name);

TEST(MoePhases, AreNamedAndOnlyTheCountsHaveNoWayBack) {
  const auto moe = make_moe({kAlone});
  std::vector<std::string> names;
  for (const ModelPhase& phase : moe->phases("3", 1)) {
    names.push_back(phase.name + (phase.compute ? " compute" : phase.exchange_back ? " both ways" : " one way"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"3.counts one way", "3.dispatch both ways", "3.experts compute",
                                             "3.combine both ways"}));
}

TEST(MoePhases, CostWhatTheyMultiply) {
  const auto moe = make_moe({kAlone});  // 2 x 10 columns of experts and 6 shared, 12 hidden.
  const std::vector<ModelPhase> phases = moe->phases("3", 3 * 12 * 26 / 2.0);
  EXPECT_EQ(phases[2].forward, 2);
  EXPECT_EQ(phases[2].backward_input, 2);
  EXPECT_EQ(phases[2].backward_weight, 2);
  EXPECT_EQ(phases[1].forward, 1.5);
  EXPECT_EQ(phases[3].backward_input, 1.5);
}

// All phases that compute run again in backward: same numbers, and the step's tokens are counted once.
TEST(MoePhases, MayBeComputedAgain) {
  run_test_ranks(2, [&](const TestRank& rank) {
    const ModelParallel parallel = groups_of(kEp2, rank);
    const auto kept = make_moe({kEp2}, parallel), again = make_moe({kEp2}, parallel);
    const Config config = config_of({kEp2});
    const at::Tensor x = input_of(config, rank.rank).requires_grad_(), y = x.detach().requires_grad_();
    const at::Tensor probe = probe_of(config, rank.rank);
    std::vector<ModelPhase> phases = again->phases("3", 1);
    ModelPhase route;
    route.compute = [&](const Tensors& inputs, PhaseState&) { return again->route(inputs[0], inputs[0]); };
    phases.insert(phases.begin(), route);
    for (ModelPhase& phase : phases) {
      phase.recompute = static_cast<bool>(phase.compute);
    }
    const at::Tensor wanted = kept->forward(x), got = again->finish(run_phases(phases, {y}, 0));
    (wanted * probe).sum().backward();
    (got * probe).sum().backward();
    EXPECT_TRUE(at::equal(got, wanted));
    EXPECT_LT(relative_distance(y.grad(), x.grad()), 1e-14);
    expect_equal_gradients(*again, *kept);
    EXPECT_TRUE(at::equal(again->router().counters().load, kept->router().counters().load));
  });
}

}  // namespace
}  // namespace pretrain_gpt
