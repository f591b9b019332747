// Custom Functions under split backward: how often they run, and what they are asked for.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "plugin/runtime/split_backward.h"
#include "tests/runtime/split_case.h"

namespace dualpipe {
namespace {

using testing::Build;
using testing::expect_exact;
using testing::Graph;
using testing::leaf;
using testing::run_plain;
using testing::run_split;
using torch::autograd::AutogradContext;

// What ran since the last reset.
struct Calls {
  int backward = 0;
  int input = 0;
  int weight = 0;
  int bias = 0;

  friend bool operator==(const Calls&, const Calls&) = default;
};

Calls calls;

// y = x w + b in three kinds, by what its backward computes.
enum class Asked { kHonours, kIgnores, kIgnoresForBias };

template <Asked asked>
struct AffineFunction : torch::autograd::Function<AffineFunction<asked>> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x, at::Tensor w, at::Tensor b) {
    context->save_for_backward({x, w});
    return at::addmm(b, x, w);
  }

  static TensorList backward(AutogradContext* context, TensorList grads) {
    ++calls.backward;
    const auto saved = context->get_saved_variables();
    TensorList result(3);
    if (asked == Asked::kIgnores || context->needs_input_grad(0)) {
      ++calls.input;
      result[0] = grads[0].mm(saved[1].t());
    }
    if (asked == Asked::kIgnores || context->needs_input_grad(1)) {
      ++calls.weight;
      result[1] = saved[0].t().mm(grads[0]);
    }
    if (asked != Asked::kHonours || context->needs_input_grad(2)) {
      ++calls.bias;
      result[2] = grads[0].sum(0);
    }
    return result;
  }
};

using Honouring = AffineFunction<Asked::kHonours>;
using Ignoring = AffineFunction<Asked::kIgnores>;
using IgnoringForBias = AffineFunction<Asked::kIgnoresForBias>;

template <typename Function>
Graph one_layer() {
  const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
  return Graph{{x}, {w, b}, {Function::apply(x, w, b).tanh()}, {}};
}

// Built-in users of the same weights before and after it, so that the order of sums shows.
template <typename Function>
Graph among_others() {
  const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
  auto h = at::addmm(b, x, w).tanh();
  h = Function::apply(h, w, b).tanh();
  h = at::addmm(b, h, w).tanh();
  h = Function::apply(h, w, b) + h.mm(w);
  return Graph{{x}, {w, b}, {h, at::addmm(b, h, w)}, {}};
}

Calls calls_in_split(const Build& build) {
  calls = {};
  run_split(build);
  return calls;
}

TEST(CustomFunction, ThatHonoursWhatIsAskedComputesEachGradientOnce) {
  expect_exact(one_layer<Honouring>);
  EXPECT_EQ(calls_in_split(one_layer<Honouring>), (Calls{2, 1, 1, 1}));
}

TEST(CustomFunction, ThatIgnoresWhatIsAskedRunsOnce) {
  expect_exact(one_layer<Ignoring>);
  EXPECT_EQ(calls_in_split(one_layer<Ignoring>), (Calls{1, 1, 1, 1}));
}

TEST(CustomFunction, ThatIgnoresItForTheBiasAloneGivesTheWeightGradientInW) {
  expect_exact(one_layer<IgnoringForBias>);
  const Calls split = calls_in_split(one_layer<IgnoringForBias>);
  EXPECT_EQ(split.input, 1);
  EXPECT_EQ(split.weight, 1);
}

TEST(CustomFunction, KeepsTheOrderOfSums) {
  expect_exact(among_others<Honouring>);
  expect_exact(among_others<Ignoring>);
  expect_exact(among_others<IgnoringForBias>);
  EXPECT_EQ(calls_in_split(among_others<Ignoring>), (Calls{2, 2, 2, 2}));
}

TEST(CustomFunction, OffThePathRunsOnceInW) {
  const Build build = [] {
    const auto x = leaf({4, 6}), v = leaf({6, 6}), w = leaf({6, 6}), b = leaf({6});
    return Graph{{x}, {v, w, b}, {x.mm(Ignoring::apply(v, w, b))}, {}};
  };
  expect_exact(build);
  EXPECT_EQ(calls_in_split(build), (Calls{1, 1, 1, 1}));
}

// Its gradients are already there when a hook behind it looks at them.
TEST(CustomFunction, ThatIgnoresWhatIsAskedIsSeenByPostHooksOnce) {
  struct DoubleAndCount : torch::autograd::FunctionPostHook {
    TensorList operator()(const TensorList& gradients, const TensorList&) override {
      ++calls.bias;
      return {gradients[0] * 2, gradients[1] * 2, gradients[2] * 2};
    }
  };
  const Build build = [] {
    const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
    const auto y = Ignoring::apply(x, w, b);
    y.grad_fn()->add_post_hook(std::make_unique<DoubleAndCount>());
    return Graph{{x}, {w, b}, {y}, {}};
  };
  expect_exact(build);
  EXPECT_EQ(calls_in_split(build), (Calls{1, 1, 1, 2}));
}

// Gives no gradient for its second argument, ever, and materialises undefined ones that come in.
struct TwoOutputs : torch::autograd::Function<TwoOutputs> {
  static TensorList forward(AutogradContext*, at::Tensor x, at::Tensor w, at::Tensor never) {
    return {x * w, x + w + never.sum()};
  }
  static TensorList backward(AutogradContext* context, TensorList grads) {
    TensorList result(3);
    if (context->needs_input_grad(0)) result[0] = grads[0] * 2 + grads[1];
    if (context->needs_input_grad(1)) result[1] = grads[0] * 3 + grads[1];
    return result;
  }
};

TEST(CustomFunction, WithAMissingGradientAndOneThatItNeverGives) {
  for (const int missing : {0, 1, 2}) {
    expect_exact([missing] {
      const auto x = leaf({4, 6}), w = leaf({4, 6}), never = leaf({2});
      const auto y = TwoOutputs::apply(x, w, never);
      TensorList gradients = {at::randn({4, 6}), at::randn({4, 6})};
      if (missing < 2) gradients[missing].reset();
      return Graph{{x}, {w, never}, y, gradients};
    });
  }
}

// Passes nothing back, so the node behind it runs on undefined gradients alone, which it takes for zeros.
struct GivesNothing : torch::autograd::Function<GivesNothing> {
  static at::Tensor forward(AutogradContext*, at::Tensor x) { return x.clone(); }
  static TensorList backward(AutogradContext*, TensorList) { return {at::Tensor()}; }
};

TEST(CustomFunction, OnUndefinedGradientsAlone) {
  expect_exact([] {
    const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
    return Graph{{x}, {w, b}, {GivesNothing::apply(Honouring::apply(x, w, b))}, {}};
  });
  expect_exact([] {
    const auto x = leaf({4, 6}), w = leaf({6, 6});
    return Graph{{x}, {w}, {GivesNothing::apply(x.mm(w))}, {}};
  });
}

}  // namespace
}  // namespace dualpipe
