// Hooks under split backward: those that change gradients change each of them once, those that watch see each once.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

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

struct ScaleBefore : torch::autograd::FunctionPreHook {
  explicit ScaleBefore(double factor) : factor(factor) {}
  TensorList operator()(const TensorList& gradients) override {
    TensorList scaled;
    for (const at::Tensor& gradient : gradients) scaled.push_back(gradient.defined() ? gradient * factor : gradient);
    return scaled;
  }
  double factor;
};

struct ScaleAfter : torch::autograd::FunctionPostHook {
  explicit ScaleAfter(double factor) : factor(factor) {}
  TensorList operator()(const TensorList& gradients, const TensorList&) override {
    TensorList scaled;
    for (const at::Tensor& gradient : gradients) scaled.push_back(gradient.defined() ? gradient * factor : gradient);
    return scaled;
  }
  double factor;
};

// Makes a gradient where there is none, as hooks that dislike undefined tensors do.
struct ZerosForUndefined : torch::autograd::FunctionPostHook {
  TensorList operator()(const TensorList& gradients, const TensorList& entered) override {
    TensorList filled = gradients;
    for (at::Tensor& gradient : filled) {
      if (!gradient.defined()) gradient = at::zeros({6, 6}, entered[0].options());
    }
    return filled;
  }
};

struct CountAccumulations : torch::autograd::PostAccumulateGradHook {
  explicit CountAccumulations(int& count) : count(count) {}
  void operator()(const at::Tensor&) override { ++count; }
  int& count;
};

void scale_gradient(const at::Tensor& tensor, double factor) {
  tensor.register_hook([factor](const at::Tensor& gradient) { return gradient * factor; });
}

struct HookCase {
  std::string name;
  Build build;

  friend void PrintTo(const HookCase& c, std::ostream* out) { *out << c.name; }
};

const std::vector<HookCase> kCases = {
    {"OnAnActivation",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto y = x.mm(w), z = y.tanh().mm(w);
       scale_gradient(y, 2.5);
       scale_gradient(z, 1.5);
       return Graph{{x}, {w}, {z}, {}};
     }},
    {"TwoOnOneActivation",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto y = x.mm(w);
       scale_gradient(y, 2.5);
       y.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
       return Graph{{x}, {w}, {y.tanh()}, {}};
     }},
    {"OnOneOfSeveralOutputs",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto parts = x.mm(w).split_with_sizes({4, 2}, 1);
       scale_gradient(parts[1], 3);
       return Graph{{x}, {w}, {parts[0], parts[1]}, {}};
     }},
    {"OnParameters",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
       scale_gradient(w, 2.5);
       scale_gradient(b, 0.5);
       return Graph{{x}, {w, b}, {at::addmm(b, x, w).mm(w)}, {}};
     }},
    {"OnAnInput",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       scale_gradient(x, 2.5);
       return Graph{{x}, {w}, {x.mm(w), x}, {}};
     }},
    {"OnAWeightThatIsComputed",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), v = leaf({6, 6});
       const auto product = w.mm(v);
       scale_gradient(product, 2.5);
       return Graph{{x}, {w, v}, {x.mm(product).mm(product)}, {}};
     }},
    {"BeforeANode",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
       const auto y = at::addmm(b, x, w);
       scale_gradient(y, 3);
       y.grad_fn()->add_pre_hook(std::make_unique<ScaleBefore>(2.5));
       return Graph{{x}, {w, b}, {y}, {}};
     }},
    {"AfterANode",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
       const auto y = at::addmm(b, x, w);
       y.grad_fn()->add_post_hook(std::make_unique<ScaleAfter>(2.5));
       return Graph{{x}, {w, b}, {y.tanh()}, {}};
     }},
    {"BeforeAndAfterANodeWithoutParameters",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto y = x.mm(w).tanh();
       y.grad_fn()->add_pre_hook(std::make_unique<ScaleBefore>(2.5));
       y.grad_fn()->add_post_hook(std::make_unique<ScaleAfter>(1.5));
       return Graph{{x}, {w}, {y}, {}};
     }},
    {"ThatFillsUndefinedGradients",
     [] {
       const auto x = leaf({6, 6}), w = leaf({6, 6});
       const auto y = x.mm(w);
       y.grad_fn()->add_post_hook(std::make_unique<ZerosForUndefined>());
       return Graph{{x}, {w}, {y}, {}};
     }},
    {"RetainedGradient",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto y = x.mm(w);
       y.retain_grad();
       scale_gradient(y, 3);
       return Graph{{x}, {w}, {y.tanh()}, {}};
     }},
};

class SplitBackwardHooks : public ::testing::TestWithParam<HookCase> {};

TEST_P(SplitBackwardHooks, ChangeGradientsOnce) { expect_exact(GetParam().build); }

INSTANTIATE_TEST_SUITE_P(Hooks, SplitBackwardHooks, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Where hooks fired in one backward: on an activation, on a parameter, after accumulation into the parameter.
struct Fired {
  int activation = 0;
  int parameter = 0;
  int accumulated = 0;

  friend bool operator==(const Fired&, const Fired&) = default;
};

Build watched(Fired& fired) {
  return [&fired] {
    const auto x = leaf({4, 6}), w = leaf({6, 6});
    const auto y = x.mm(w), z = y.mm(w).mm(w);
    y.register_hook([&fired](const at::Tensor&) { ++fired.activation; });
    w.register_hook([&fired](const at::Tensor&) { ++fired.parameter; });
    torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<CountAccumulations>(fired.accumulated));
    return Graph{{x}, {w}, {z, y}, {}};
  };
}

TEST(SplitBackwardWatched, FireOncePerBackward) {
  Fired plain, split;
  run_plain(watched(plain));
  run_split(watched(split));
  EXPECT_EQ(plain, (Fired{1, 1, 1}));
  EXPECT_EQ(split, (Fired{1, 1, 1}));
}

TEST(SplitBackwardWatched, OfParametersFireInW) {
  Fired fired;
  WeightGradStore store;
  const Graph graph = watched(fired)();
  Graph seeded = graph;
  seeded.gradients = {at::ones({4, 6}), at::ones({4, 6})};
  testing::run_input_backward(seeded, store);
  EXPECT_EQ(fired, (Fired{1, 0, 0}));
  store.run({0, 0});
  EXPECT_EQ(fired, (Fired{1, 1, 1}));
}

TEST(SplitBackwardWatched, RetainedGradientsAreThoseOfPlainBackward) {
  const auto x = leaf({4, 6}), w = leaf({6, 6});
  const auto y = x.mm(w);
  y.retain_grad();
  WeightGradStore store;
  testing::run_input_backward(Graph{{x}, {w}, {y * 3}, {at::ones({4, 6})}}, store);
  store.run({0, 0});
  EXPECT_TRUE(at::equal(y.grad(), at::full({4, 6}, 3.0)));
}

// A backward that throws in I leaves neither hooks nor cycles: what the graph held is freed with it.
TEST(SplitBackwardWatched, ABackwardThatThrowsLeavesNothingBehind) {
  WeightGradStore store;
  const auto run = [&store] {
    const auto x = leaf({4, 6}), w = leaf({6, 6});
    const auto h = x.tanh();
    h.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      if (gradient.dim() == 2) throw std::runtime_error("hook");
      return gradient;
    });
    const Graph graph{{x}, {w}, {h.mm(w)}, {at::ones({4, 6})}};
    EXPECT_THROW(testing::run_input_backward(graph, store), std::runtime_error);
    EXPECT_TRUE(graph.outputs[0].grad_fn()->pre_hooks().empty());
    EXPECT_TRUE(graph.outputs[0].grad_fn()->post_hooks().empty());
    return h.storage().getWeakStorageImpl();
  };
  EXPECT_TRUE(run().expired());
  EXPECT_TRUE(store.splitting());
  store.clear();
  EXPECT_FALSE(store.splitting());
}

}  // namespace
}  // namespace dualpipe
