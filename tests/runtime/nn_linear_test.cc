#include "plugin/runtime/nn/linear.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "plugin/runtime/split_backward.h"
#include "tests/runtime/split_case.h"

namespace dualpipe {
namespace {

using testing::Build;
using testing::constant;
using testing::expect_equal_bits;
using testing::Graph;
using testing::leaf;
using testing::Outcome;
using testing::ProductCounter;

using LinearFunction = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

at::Tensor of_libtorch(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

struct LinearCase {
  std::string name;
  std::function<Graph(const LinearFunction& linear)> build;

  friend void PrintTo(const LinearCase& c, std::ostream* out) { *out << c.name; }
};

const std::vector<LinearCase> kCases = {
    {"TwoDimensions",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"TwoDimensionsWithoutBias",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5});
       return Graph{{x}, {w}, {linear(x, w, {})}, {}};
     }},
    {"OneDimension",
     [](const auto& linear) {
       const auto x = leaf({5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"ThreeDimensions",
     [](const auto& linear) {
       const auto x = leaf({2, 3, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"FourDimensionsWithoutBias",
     [](const auto& linear) {
       const auto x = leaf({2, 3, 2, 5}), w = leaf({4, 5});
       return Graph{{x}, {w}, {linear(x, w, {})}, {}};
     }},
    {"FrozenWeight",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = constant({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"FrozenBias",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = constant({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"Frozen",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = constant({4, 5});
       return Graph{{x}, {w}, {linear(x, w, {})}, {}};
     }},
    {"FirstLayer",
     [](const auto& linear) {
       const auto x = constant({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b).tanh()}, {}};
     }},
    {"Stack",
     [](const auto& linear) {
       const auto x = leaf({2, 3, 5}), w1 = leaf({7, 5}), b1 = leaf({7}), w2 = leaf({5, 7}), g = leaf({5});
       const auto h = at::layer_norm(x, {5}, g);
       return Graph{{x}, {w1, b1, w2, g}, {x + linear(at::gelu(linear(h, w1, b1)), w2, {})}, {}};
     }},
    {"OffThePath",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), v = leaf({6, 5}), w = leaf({5, 5});
       return Graph{{x}, {v, w}, {x + linear(v, w, {}), v.sum()}, {}};
     }},
    // The weight's gradient belongs to what it is computed from: left to the runtime.
    {"ComputedWeight",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w * 2, b)}, {}};
     }},
    {"WeightThatDependsOnTheInput",
     [](const auto& linear) {
       const auto x = leaf({5, 5}), b = leaf({5});
       return Graph{{x}, {b}, {linear(x, x.tanh(), b)}, {}};
     }},
    {"WeightThatIsAnInput",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x, w}, {b}, {linear(x, w, b)}, {}};
     }},
    {"InputThatIsNotContiguous",
     [](const auto& linear) {
       const auto x = leaf({5, 6}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x.t(), w, b)}, {}};
     }},
    {"Brain16",
     [](const auto& linear) {
       const auto x = leaf({6, 8}, at::kBFloat16), w = leaf({4, 8}, at::kBFloat16), b = leaf({4}, at::kBFloat16);
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"BroadcastGradient",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b).sum()}, {}};
     }},
    {"NoRows",
     [](const auto& linear) {
       const auto x = leaf({0, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {linear(x, w, b)}, {}};
     }},
    {"NoGradient",
     [](const auto& linear) {
       const auto x = leaf({6, 5}), w = leaf({4, 5});
       return Graph{{x}, {w}, {linear(x, w, {})}, {at::Tensor()}};
     }},
};

class NnLinear : public ::testing::TestWithParam<LinearCase> {
 protected:
  Build ours() const {
    return [] { return GetParam().build(nn::linear); };
  }
  Build theirs() const {
    return [] { return GetParam().build(of_libtorch); };
  }
};

// Outputs, and gradients of a plain backward and of I and W.
TEST_P(NnLinear, IsThatOfLibTorchToTheBit) {
  const Outcome reference = testing::run_plain(theirs());
  const Outcome split = testing::run_split(ours());
  expect_equal_bits(split.input_grads, reference.input_grads, "gradient of input");
  expect_equal_bits(split.parameter_grads, reference.parameter_grads, "gradient of parameter");
  EXPECT_LE(split.products, reference.products);

  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  torch::manual_seed(3);
  const TensorList expected = theirs()().outputs;
  torch::manual_seed(3);
  expect_equal_bits(ours()().outputs, expected, "output");
  testing::expect_exact(ours());
}

INSTANTIATE_TEST_SUITE_P(Cases, NnLinear, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// I of one layer under a store, which then has its closure.
SplitResult split_of(const at::Tensor& x, const at::Tensor& output, WeightGradStore& store) {
  store.begin();
  GraphRoots roots = roots_of({output});
  roots.gradients[0] = at::ones_like(output);
  SplitResult result = input_backward(roots, {x}, store);
  store.seal({0, 0});
  return result;
}

TEST(NnLinearStore, TakesTheClosureOfALayerAndNothingElse) {
  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  nn::Linear layer(5, 4);
  const auto x = leaf({6, 5});
  const SplitResult result = split_of(x, layer(x), store);
  EXPECT_FALSE(result.weight_work);
  EXPECT_EQ(store.put_count(), 1u);
  EXPECT_EQ(store.pending_bytes(), (6 * 4 + 6 * 5) * sizeof(float));
  EXPECT_FALSE(layer->weight.grad().defined());
  store.run({0, 0});
  EXPECT_TRUE(at::allclose(layer->weight.grad(), at::ones({4, 6}).mm(x.detach())));
  EXPECT_TRUE(at::equal(layer->bias.grad(), at::full({4}, 6.0)));
}

TEST(NnLinearStore, PutsNothingOutsideASplitBackward) {
  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  nn::Linear layer(5, 4);
  const auto x = leaf({6, 5});
  layer(x).sum().backward();
  EXPECT_EQ(store.put_count(), 0u);
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST(NnLinearStore, IsNotNeeded) {
  nn::Linear layer(torch::nn::LinearOptions(5, 4).bias(false));
  const auto x = leaf({6, 5});
  layer(x).sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
  EXPECT_FALSE(layer->bias.defined());
}

TEST(NnLinearStore, DoesOneProductInIAndOneInW) {
  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  nn::Linear layer(5, 4);
  const auto x = leaf({6, 5});
  const at::Tensor y = layer(x);
  const ProductCounter in_i;
  split_of(x, y, store);
  EXPECT_EQ(ProductCounter::count(), 1u);
  store.run({0, 0});
  EXPECT_EQ(ProductCounter::count(), 2u);
}

struct Count : torch::autograd::PostAccumulateGradHook {
  explicit Count(int& count) : count(count) {}
  void operator()(const at::Tensor&) override { ++count; }
  int& count;
};

TEST(NnLinearStore, FiresHooksOfParametersOnceAndInW) {
  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  nn::Linear layer(5, 4);
  int accumulated = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(layer->weight, std::make_unique<Count>(accumulated));
  layer->weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  const auto x = leaf({6, 5});
  split_of(x, layer(x), store);
  EXPECT_EQ(accumulated, 0);
  store.run({0, 0});
  EXPECT_EQ(accumulated, 1);
  EXPECT_TRUE(at::allclose(layer->weight.grad(), 2 * at::ones({4, 6}).mm(x.detach())));
}

TEST(NnLinearStore, SumsTheClosuresOfALayerThatIsCalledTwice) {
  const Build build = [] {
    const auto x = leaf({6, 5}), w = leaf({5, 5}), b = leaf({5});
    return Graph{{x}, {w, b}, {nn::linear(nn::linear(x, w, b).tanh(), w, b)}, {}};
  };
  const Outcome plain = testing::run_plain(build), split = testing::run_split(build);
  expect_equal_bits(split.input_grads, plain.input_grads, "gradient of input");
  expect_equal_bits(split.parameter_grads, plain.parameter_grads, "gradient of parameter");
}

TEST(NnLinearStore, IsLeftToTheRuntimeUnderAutocast) {
  WeightGradStore store;
  const WeightGradStore::Scope scope(store);
  nn::Linear layer(8, 4);
  const auto x = leaf({6, 8});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = layer(x);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const SplitResult result = split_of(x, y, store);
  EXPECT_EQ(store.put_count(), 0u);
  result.weight_work();
  EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
}

TEST(NnLinearStore, HasTheParametersOfLibTorchsOwn) {
  torch::manual_seed(5);
  const nn::Linear ours(5, 4);
  torch::manual_seed(5);
  const torch::nn::Linear theirs(5, 4);
  expect_equal_bits(ours->parameters(), theirs->parameters(), "parameter");
  EXPECT_EQ(ours->named_parameters().keys(), theirs->named_parameters().keys());
}

}  // namespace
}  // namespace dualpipe
