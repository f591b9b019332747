// I and W of a transformer layer do the matrix products of B, each once, in one graph and phase by phase.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "plugin/runtime/phased_graph.h"
#include "tests/runtime/split_case.h"
#include "tests/runtime/transformer_layer.h"

namespace dualpipe::testing {
namespace {

// Four linear layers and two products within attention, two products each in backward.
constexpr std::size_t kBackwardProducts = 2 * (4 + 2);
constexpr std::size_t kForwardProducts = 4 + 2;

Graph layer_graph() {
  const TransformerLayer layer = make_transformer_layer(32, 4, at::kDouble);
  const at::Tensor x = leaf({6, 32}, at::kDouble);
  return {{x}, layer.parameters(), {feed_forward(layer, attend(layer, x))}, {}};
}

TEST(Products, OfOneGraphAreDoneOnce) {
  expect_exact(layer_graph);
  EXPECT_EQ(run_plain(layer_graph).products, kBackwardProducts);
  EXPECT_EQ(run_full(layer_graph).products, kBackwardProducts);
  EXPECT_EQ(run_split(layer_graph).products, kBackwardProducts);
}

std::vector<Phase> phases_of(const TransformerLayer& layer, bool recompute) {
  Phase attention;
  attention.spec.name = "attention";
  attention.recompute = recompute;
  attention.compute = [layer](const TensorList& t, PhaseContext&) { return TensorList{attend(layer, t.at(0))}; };
  Phase mlp = attention;
  mlp.spec.name = "mlp";
  mlp.compute = [layer](const TensorList& t, PhaseContext&) { return TensorList{feed_forward(layer, t.at(0))}; };
  return {attention, mlp};
}

Outcome run_phases(bool recompute, bool split) {
  at::manual_seed(5);
  const TransformerLayer layer = make_transformer_layer(32, 4, at::kDouble);
  const at::Tensor x = leaf({6, 32}, at::kDouble);
  const TensorList gradients{constant({6, 32}, at::kDouble)};
  const std::vector<Phase> phases = phases_of(layer, recompute);
  WeightGradStore store;
  StepRecorder recorder;
  PhasedGraph graph({0, 0, {}, store, recorder}, phases, {x});
  graph.forward();
  Outcome outcome;
  const ProductCounter counter;
  outcome.input_grads = split ? graph.backward_input(gradients) : graph.backward(gradients);
  if (split) graph.backward_weight();
  outcome.products = ProductCounter::count();
  for (const at::Tensor& parameter : layer.parameters()) outcome.parameter_grads.push_back(parameter.grad());
  EXPECT_TRUE(store.empty());
  return outcome;
}

TEST(Products, OfPhasesAreDoneOnce) {
  const Outcome full = run_phases(false, false);
  const Outcome split = run_phases(false, true);
  EXPECT_EQ(full.products, kBackwardProducts);
  EXPECT_EQ(split.products, kBackwardProducts);
  expect_equal_bits(split.input_grads, full.input_grads, "gradient of input");
  expect_equal_bits(split.parameter_grads, full.parameter_grads, "gradient of parameter");
}

TEST(Products, OfAForwardAreDoneOnceAgainWithRecompute) {
  const Outcome kept = run_phases(false, false);
  for (bool split : {false, true}) {
    const Outcome recomputed = run_phases(true, split);
    EXPECT_EQ(recomputed.products, kBackwardProducts + kForwardProducts);
    expect_equal_bits(recomputed.input_grads, kept.input_grads, "gradient of input");
    expect_equal_bits(recomputed.parameter_grads, kept.parameter_grads, "gradient of parameter");
  }
}

}  // namespace
}  // namespace dualpipe::testing
