// What split backward frees and what it keeps.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "plugin/runtime/split_backward.h"
#include "tests/runtime/split_case.h"

namespace dualpipe {
namespace {

using testing::Graph;
using testing::leaf;
using testing::run_input_backward;

// Tells whether tensors are still alive, without keeping them so.
class Watch {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    storages_.emplace(name, tensor.storage().getWeakStorageImpl());
  }
  bool alive(const std::string& name) const { return !storages_.at(name).expired(); }
  std::string living() const {
    std::string names;
    for (const auto& [name, storage] : storages_) {
      if (!storage.expired()) names += (names.empty() ? "" : " ") + name;
    }
    return names;
  }

 private:
  std::map<std::string, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// x -> tanh -> linear w -> sigmoid -> linear w -> exp, whose nodes save what is watched.
struct Mlp {
  explicit Mlp(Watch& watch) : x(leaf({8, 6})), w(leaf({6, 6})) {
    const auto a = x.tanh(), b = a.mm(w), c = b.sigmoid(), d = c.mm(w), e = d.exp();
    watch.add("tanh", a);
    watch.add("linear1", b);
    watch.add("sigmoid", c);
    watch.add("linear2", d);
    watch.add("exp", e);
    output = e;
  }

  at::Tensor x;
  at::Tensor w;
  at::Tensor output;
};

TEST(SplitBackwardMemory, AfterIOnlyWhatWeightsNeedIsAlive) {
  Watch watch;
  WeightGradStore store;
  TensorList input_grads;
  const at::Tensor w = [&] {
    const Mlp mlp(watch);
    const Graph graph{{mlp.x}, {mlp.w}, {mlp.output}, {at::ones({8, 6})}};
    EXPECT_EQ(watch.living(), "exp sigmoid tanh");
    input_grads = run_input_backward(graph, store).input_grads;
    return mlp.w;
  }();
  EXPECT_EQ(watch.living(), "sigmoid tanh");
  EXPECT_EQ(store.pending_bytes(), 2 * 8 * 6 * sizeof(float));
  store.run({0, 0});
  EXPECT_EQ(watch.living(), "");
  EXPECT_TRUE(w.grad().defined());
}

// As plain backward does, I frees saved tensors as it goes.
TEST(SplitBackwardMemory, ThePathIsFreedWhileIRuns) {
  Watch watch;
  WeightGradStore store;
  Mlp mlp(watch);
  std::string living;
  mlp.x.register_hook([&](const at::Tensor& gradient) {
    living = watch.living();
    return gradient;
  });
  GraphRoots roots = roots_of({mlp.output});
  roots.gradients[0] = at::ones({8, 6});
  mlp.output.reset();
  store.begin();
  const SplitResult result = input_backward(roots, {mlp.x}, store);
  EXPECT_EQ(living, "sigmoid tanh");
}

TEST(SplitBackwardMemory, WithoutWeightsNothingIsKept) {
  Watch watch;
  WeightGradStore store;
  {
    const auto x = leaf({8, 6});
    const auto h = x.tanh();
    watch.add("tanh", h);
    const SplitResult result = run_input_backward(Graph{{x}, {}, {h.exp()}, {at::ones({8, 6})}}, store);
    EXPECT_FALSE(result.weight_work);
    EXPECT_EQ(result.bytes, 0u);
  }
  EXPECT_EQ(watch.living(), "");
  store.run({0, 0});
}

TEST(SplitBackwardMemory, OutputsMayBeFreedBeforeTheBackward) {
  Watch watch;
  const auto x = leaf({8, 6}), w = leaf({6, 6});
  GraphRoots roots;
  {
    const auto y = x.mm(w);
    watch.add("y", y);
    roots = roots_of({y});
  }
  EXPECT_EQ(watch.living(), "");
  roots.gradients[0] = at::ones({8, 6});
  EXPECT_TRUE(at::equal(full_backward(roots, {x})[0], at::ones({8, 6}).mm(w.t())));
}

TEST(SplitBackwardMemory, FullBackwardFreesTheGraph) {
  Watch watch;
  Mlp mlp(watch);
  GraphRoots roots = roots_of({mlp.output});
  roots.gradients[0] = at::ones({8, 6});
  mlp.output.reset();
  full_backward(roots, {mlp.x});
  EXPECT_EQ(watch.living(), "");
}

// A gradient that enters several nodes is one tensor, a broadcast one is as small as what it is made from.
TEST(SplitBackwardMemory, BytesCountEachStorageOnce) {
  WeightGradStore store;
  const auto x = leaf({8, 6}), w = leaf({6, 6});
  const Graph graph{{x}, {w}, {x.mm(w) + x.mm(w) + x.mm(w)}, {at::ones({8, 6})}};
  EXPECT_EQ(run_input_backward(graph, store).bytes, 8 * 6 * sizeof(float));
  store.clear();
  const Graph broadcast{{x}, {w}, {x.mm(w).sum()}, {at::ones({})}};
  EXPECT_EQ(run_input_backward(broadcast, store).bytes, sizeof(float));
}

// Nodes that compute and are run again would not reach what lies below through the path.
TEST(SplitBackwardMemory, WeightWorkRunsOnce) {
  WeightGradStore store;
  const auto x = leaf({8, 6}), w = leaf({6, 6});
  const SplitResult result = run_input_backward(Graph{{x}, {w}, {x.mm(w)}, {at::ones({8, 6})}}, store);
  result.weight_work();
  EXPECT_THROW(result.weight_work(), std::logic_error);
}

// Deep enough to overflow the stack of a recursive walk.
TEST(SplitBackwardMemory, DeepGraphsAreWalkedWithoutRecursion) {
  WeightGradStore store;
  const auto x = leaf({1}), w = leaf({1});
  auto h = x * w;
  for (int i = 0; i < 50000; ++i) h = h + x;
  const SplitResult result = run_input_backward(Graph{{x}, {w}, {h}, {at::ones({1})}}, store);
  EXPECT_EQ(result.input_grads[0].item<float>(), 50000 + w.item<float>());
  store.run({0, 0});
  EXPECT_EQ(w.grad().item<float>(), x.item<float>());
}

}  // namespace
}  // namespace dualpipe
