// Faults that users met elsewhere, at the level of the backward of one stage.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "plugin/runtime/split_backward.h"
#include "tests/runtime/split_case.h"

namespace dualpipe {
namespace {

using testing::expect_exact;
using testing::Graph;
using testing::leaf;

TEST(FieldReport01, OneWeightTwiceOnAPath) {
  expect_exact([] {
    const auto x = leaf({6, 5}, at::kDouble), w = leaf({5, 5}, at::kDouble);
    return Graph{{x}, {w}, {x.mm(w).mm(w)}, {}};
  });
  expect_exact([] {
    const auto x = leaf({6, 5}), w = leaf({5, 5}), b = leaf({5});
    return Graph{{x}, {w, b}, {at::linear(at::linear(x, w, b), w, b)}, {}};
  });
}

TEST(FieldReport02, ChunksOfALinear) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{4, 4}, {5, 3}}) {
    expect_exact([sizes] {
      const auto x = leaf({6, 5}), w = leaf({8, 5}), b = leaf({8});
      const auto parts = at::linear(x, w, b).split_with_sizes(sizes, 1);
      if (sizes[0] != sizes[1]) return Graph{{x}, {w, b}, {parts[0].relu(), at::tanh(parts[1]) * 3}, {}};
      return Graph{{x}, {w, b}, {parts[0].relu() + at::tanh(parts[1]) * 3}, {}};
    });
  }
}

// The middle of (a, b) -> a: b gets no gradient, which is not an error, in full and in split backward.
TEST(FieldReport28, AnInputThatGetsNoGradient) {
  const auto build = [] {
    const auto a = leaf({4, 6}), b = leaf({4, 6}), w = leaf({6, 6});
    return Graph{{a, b}, {w}, {at::linear(a, w)}, {}};
  };
  expect_exact(build);
  const testing::Outcome split = testing::run_split(build);
  EXPECT_TRUE(split.input_grads[0].defined());
  EXPECT_FALSE(split.input_grads[1].defined());
}

// The stage behind gives no gradient for one output, or for none at all.
TEST(FieldReport28, AnOutputThatGetsNoGradient) {
  for (const int kept : {0, 1, 2}) {
    expect_exact([kept] {
      const auto a = leaf({4, 6}), b = leaf({4, 6}), w = leaf({6, 6});
      TensorList gradients(2);
      if (kept < 2) gradients[kept] = at::randn({4, 6});
      return Graph{{a, b}, {w}, {a.mm(w), (a * b).mm(w)}, gradients};
    });
  }
}

TEST(FieldReport29, ATensorThatOnlyOddMicroBatchesUse) {
  for (const int micro_batch : {0, 1, 2, 3}) {
    expect_exact([micro_batch] {
      const auto a = leaf({4, 6}), b = leaf({4, 6}), w = leaf({6, 6});
      return Graph{{a, b}, {w}, {micro_batch % 2 ? (a + b).mm(w) : a.mm(w)}, {}};
    });
  }
}

TEST(FieldReport32, LayersThatPutNothingIntoTheStore) {
  expect_exact([] {
    const auto x = leaf({6, 5}), w = leaf({5, 5}), g = leaf({5}), b = leaf({5});
    return Graph{{x}, {w, g, b}, {at::relu(at::layer_norm(at::linear(x, w), {5}, g, b))}, {}};
  });
  WeightGradStore store;
  const auto x = leaf({6, 5});
  testing::run_input_backward(Graph{{x}, {}, {x.relu()}, {at::ones({6, 5})}}, store);
  EXPECT_NO_THROW(store.run({0, 0}));
  EXPECT_TRUE(store.empty());
}

// Two micro-batches under way at once, their W in either order.
TEST(SplitBackwardMicroBatches, KeepTheirOwnGradients) {
  const auto w = leaf({6, 6}, at::kDouble);
  const auto x0 = leaf({4, 6}, at::kDouble), x1 = leaf({4, 6}, at::kDouble);
  const Graph first{{x0}, {w}, {x0.mm(w).tanh().mm(w)}, {at::ones({4, 6}, at::kDouble)}};
  const Graph second{{x1}, {w}, {x1.mm(w).tanh().mm(w)}, {at::ones({4, 6}, at::kDouble)}};
  WeightGradStore unused;
  const SplitResult a = input_backward(testing::roots_of(first), first.inputs, unused);
  const SplitResult b = input_backward(testing::roots_of(second), second.inputs, unused);
  b.weight_work();
  const at::Tensor of_second = w.grad().clone();
  a.weight_work();

  const auto v = w.detach().requires_grad_();
  x1.detach().mm(v).tanh().mm(v).sum().backward();
  EXPECT_TRUE(at::equal(of_second, v.grad()));
  x0.detach().mm(v).tanh().mm(v).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), v.grad()));
}

}  // namespace
}  // namespace dualpipe
