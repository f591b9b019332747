// Split backward against plain autograd, to the bit, for graphs of all shapes.

#include "plugin/runtime/split_backward.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/runtime/split_case.h"

namespace dualpipe {
namespace {

using testing::Build;
using testing::constant;
using testing::expect_exact;
using testing::Graph;
using testing::leaf;

struct SplitCase {
  std::string name;
  Build build;

  friend void PrintTo(const SplitCase& c, std::ostream* out) { *out << c.name; }
};

// Layers as models have them.
const std::vector<SplitCase> kLayers = {
    {"Linear",
     [] {
       const auto x = leaf({6, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {at::linear(x, w, b)}, {}};
     }},
    {"LinearOfThreeDimensions",
     [] {
       const auto x = leaf({2, 3, 5}), w = leaf({4, 5}), b = leaf({4});
       return Graph{{x}, {w, b}, {at::linear(x, w, b)}, {}};
     }},
    {"LayerNorm",
     [] {
       const auto x = leaf({6, 5}), w = leaf({5}), b = leaf({5});
       return Graph{{x}, {w, b}, {at::layer_norm(x, {5}, w, b)}, {}};
     }},
    {"MlpWithResidual",
     [] {
       const auto x = leaf({6, 5}), g = leaf({5}), b = leaf({5}), w1 = leaf({7, 5}), w2 = leaf({5, 7});
       const auto h = at::layer_norm(x, {5}, g, b);
       return Graph{{x}, {g, b, w1, w2}, {x + at::linear(at::gelu(at::linear(h, w1)), w2)}, {}};
     }},
    {"Attention",
     [] {
       const auto x = leaf({2, 4, 8}), qkv = leaf({24, 8}), out = leaf({8, 8});
       const auto parts = at::linear(x, qkv).view({2, 4, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
       const auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
       return Graph{{x}, {qkv, out}, {at::linear(y.transpose(1, 2).reshape({2, 4, 8}), out)}, {}};
     }},
    // Keys and values come from parameters alone, and the kernel computes their gradients with that of the queries.
    {"AttentionToLearnedKeys",
     [] {
       const auto x = leaf({2, 2, 4, 8}), k = leaf({2, 2, 6, 8}), v = leaf({2, 2, 6, 8});
       return Graph{{x}, {k, v}, {at::scaled_dot_product_attention(x, k * 2, v * 3)}, {}};
     }},
    {"Dropout",
     [] {
       const auto x = leaf({6, 5}), w = leaf({5, 5});
       return Graph{{x}, {w}, {at::dropout(at::linear(at::dropout(x, 0.5, true), w), 0.3, true)}, {}};
     }},
    {"EmbeddingAddedToTheInput",
     [] {
       const auto x = leaf({3, 5}), table = leaf({7, 5});
       return Graph{{x, at::tensor({1, 6, 1})}, {table}, {x + at::embedding(table, at::tensor({1, 6, 1}))}, {}};
     }},
    {"Convolution",
     [] {
       const auto x = leaf({2, 3, 6}), w = leaf({4, 3, 3}), b = leaf({4});
       return Graph{{x}, {w, b}, {at::conv1d(x, w, b)}, {}};
     }},
    {"Lstm",
     [] {
       const auto x = leaf({3, 2, 4});
       const TensorList weights = {leaf({20, 4}), leaf({20, 5}), leaf({20}), leaf({20})};
       const auto h = at::zeros({1, 2, 5});
       const auto result = at::lstm(x, {h, h}, weights, true, 1, 0.0, true, false, false);
       return Graph{{x}, weights, {std::get<0>(result), std::get<2>(result)}, {}};
     }},
};

// Weights with more than one user.
const std::vector<SplitCase> kSharedWeights = {
    {"WeightOnTwoBranches",
     [] {
       const auto x = leaf({6, 5}), w = leaf({5, 5});
       return Graph{{x}, {w}, {x.mm(w).relu() + x.tanh().mm(w)}, {}};
     }},
    {"WeightProduct",
     [] {
       const auto x = leaf({6, 5}), w1 = leaf({5, 4}), w2 = leaf({4, 3});
       return Graph{{x}, {w1, w2}, {x.mm(w1.mm(w2))}, {}};
     }},
    {"WeightProductUsedTwiceAndAlone",
     [] {
       const auto x = leaf({6, 5}), w1 = leaf({5, 5}), w2 = leaf({5, 5});
       const auto product = w1.mm(w2);
       return Graph{{x}, {w1, w2}, {x.mm(product).tanh().mm(product).mm(w1)}, {}};
     }},
    // Sums of more than two terms depend on their order.
    {"WeightUsedFiveTimes",
     [] {
       const auto x = leaf({6, 5}), w = leaf({5, 5});
       auto h = x;
       for (int i = 0; i < 5; ++i) h = h.mm(w).tanh() + h;
       return Graph{{x}, {w}, {h}, {}};
     }},
    {"WeightOnAndOffThePath",
     [] {
       const auto x = leaf({6, 5}), w = leaf({5, 5});
       return Graph{{x}, {w}, {x.mm(w), w.sum(), (x.mm(w).mm(w) * w.sum()).tanh()}, {}};
     }},
    {"ScaleOfSeveralSums",
     [] {
       const auto x = leaf({6, 5}), s = leaf({5});
       return Graph{{x}, {s}, {x * s + (x * s).tanh() * s, x / s}, {}};
     }},
};

// Nodes with several outputs.
const std::vector<SplitCase> kSeveralOutputs = {
    {"Unbind",
     [] {
       const auto x = leaf({3, 5}), w = leaf({5, 5});
       const auto parts = x.mm(w).unbind(0);
       return Graph{{x}, {w}, {parts[0] * parts[2], parts[1]}, {}};
     }},
    {"TopKAndItsIndices",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto [values, indices] = at::topk(x.mm(w), 2);
       return Graph{{x}, {w}, {values, indices}, {}};
     }},
    {"SplitOfAWeight",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 8});
       const auto parts = w.split_with_sizes({5, 3}, 1);
       return Graph{{x}, {w}, {x.mm(parts[0]), x.mm(parts[1]).tanh()}, {}};
     }},
    {"SomeOutputsOfANodeUnused",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 9});
       return Graph{{x}, {w}, {x.mm(w).chunk(3, 1)[1]}, {}};
     }},
};

// What comes in and what goes out.
const std::vector<SplitCase> kBoundaries = {
    {"OutputThatNoInputReaches",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), v = leaf({3});
       return Graph{{x}, {w, v}, {x.mm(w), v.exp(), v}, {}};
     }},
    {"NoOutputIsReachedByAnInput",
     [] {
       const auto x = leaf({4, 6}), v = leaf({3});
       return Graph{{x}, {v}, {v.exp()}, {}};
     }},
    {"FirstStage",
     [] {
       const auto ids = at::tensor({0, 3, 2, 2}).view({2, 2});
       const auto table = leaf({4, 5}), w = leaf({5, 5});
       return Graph{{ids}, {table, w}, {at::linear(at::embedding(table, ids), w)}, {}};
     }},
    {"FrozenAndUnusedParameters",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), frozen = constant({6, 6}), unused = leaf({2});
       return Graph{{x}, {w, frozen, unused}, {x.mm(frozen).mm(w).mm(frozen)}, {}};
     }},
    {"NoParameters",
     [] {
       const auto x = leaf({4, 6});
       return Graph{{x}, {}, {x.tanh()}, {}};
     }},
    {"NothingRequiresGrad",
     [] {
       const auto x = constant({4, 6});
       return Graph{{x}, {}, {x.tanh()}, {}};
     }},
    {"InputIsAnOutput",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       return Graph{{x}, {w}, {x, x.mm(w), x}, {}};
     }},
    {"OutputsTwice",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto y = x.mm(w);
       return Graph{{x}, {w}, {y, y, y.view({6, 4}), y}, {}};
     }},
    {"InputsOfManyKinds",
     [] {
       const auto x = leaf({4, 6}), y = leaf({4, 6}), z = constant({4, 6}), w = leaf({6, 6});
       const auto mask = at::tensor({1, 0, 1, 1}).to(at::kBool).unsqueeze(1);
       return Graph{{x, at::tensor({2, 0}), {}, mask, y, z},
                    {w},
                    {at::where(mask, x.mm(w), y), {}, z, at::tensor({5}), x.index_select(0, at::tensor({2, 0}))},
                    {}};
     }},
    {"InputThatIsNotUsed",
     [] {
       const auto x = leaf({4, 6}), ignored = leaf({4, 6}), w = leaf({6, 6});
       return Graph{{x, ignored}, {w}, {x.mm(w)}, {}};
     }},
    {"InputUsedThreeTimes",
     [] {
       const auto x = leaf({6, 6}), w = leaf({6, 6});
       return Graph{{x}, {w}, {x.mm(w).mm(x) + x}, {}};
     }},
    {"OneInputListedTwice",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       return Graph{{x, x}, {w}, {x.mm(w)}, {}};
     }},
    {"Brain16",
     [] {
       const auto x = leaf({4, 8}, at::kBFloat16), w = leaf({8, 8}, at::kBFloat16), g = leaf({8}, at::kBFloat16);
       return Graph{{x}, {w, g}, {at::linear(at::layer_norm(x, {8}, g), w).tanh().mm(w)}, {}};
     }},
    {"MixedPrecision",
     [] {
       const auto x = leaf({4, 8}, at::kBFloat16), w = leaf({8, 8});
       return Graph{{x}, {w}, {x.mm(w.to(at::kBFloat16)).to(at::kFloat).mm(w)}, {}};
     }},
    {"GradientsThatAreNotContiguous",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 5}), b = leaf({5});
       return Graph{{x}, {w, b}, {at::addmm(b, x, w), x.mm(w)}, {constant({5, 4}).t(), constant({1}).expand({4, 5})}};
     }},
    {"InputThatIsNotContiguous",
     [] {
       const auto x = constant({6, 4}).t().requires_grad_(), w = leaf({6, 5});
       return Graph{{x}, {w}, {x.mm(w)}, {}};
     }},
};

// Tensors that change under the graph.
const std::vector<SplitCase> kInPlaceAndViews = {
    {"InPlace",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({6});
       auto h = x.mm(w);
       h.add_(b).mul_(2).tanh_();
       return Graph{{x}, {w, b}, {h}, {}};
     }},
    {"InPlaceOnAView",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6}), b = leaf({3});
       auto h = x.mm(w);
       h.narrow(1, 0, 3).mul_(b);
       return Graph{{x}, {w, b}, {h.tanh()}, {}};
     }},
    {"ProductInPlaceOnAView",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 3}), v = leaf({4, 6});
       auto h = x * v;
       h.narrow(1, 0, 3).addmm_(x, w);
       return Graph{{x}, {w, v}, {h.tanh()}, {}};
     }},
    {"InputWrittenIntoAViewOfAParameter",
     [] {
       const auto x = leaf({4, 3}), v = leaf({4, 6});
       auto h = v.clone();
       h.narrow(1, 1, 3).copy_(x);
       return Graph{{x}, {v}, {h.tanh()}, {}};
     }},
    {"ParameterWrittenIntoAViewOfAnInput",
     [] {
       const auto x = leaf({4, 6}), v = leaf({4, 3});
       auto h = x.clone();
       h.narrow(1, 1, 3).copy_(v.exp());
       return Graph{{x}, {v}, {h.tanh(), h.narrow(1, 2, 2)}, {}};
     }},
    {"ViewsAsOutputs",
     [] {
       const auto x = leaf({4, 6}), w = leaf({6, 6});
       const auto h = x.mm(w);
       return Graph{{x}, {w}, {h.t(), h.view({2, 12}), h.select(0, 1)}, {}};
     }},
};

class SplitBackward : public ::testing::TestWithParam<SplitCase> {};

TEST_P(SplitBackward, IsExact) { expect_exact(GetParam().build); }

std::string name_of(const ::testing::TestParamInfo<SplitCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Layers, SplitBackward, ::testing::ValuesIn(kLayers), name_of);
INSTANTIATE_TEST_SUITE_P(SharedWeights, SplitBackward, ::testing::ValuesIn(kSharedWeights), name_of);
INSTANTIATE_TEST_SUITE_P(SeveralOutputs, SplitBackward, ::testing::ValuesIn(kSeveralOutputs), name_of);
INSTANTIATE_TEST_SUITE_P(Boundaries, SplitBackward, ::testing::ValuesIn(kBoundaries), name_of);
INSTANTIATE_TEST_SUITE_P(InPlaceAndViews, SplitBackward, ::testing::ValuesIn(kInPlaceAndViews), name_of);

}  // namespace
}  // namespace dualpipe
