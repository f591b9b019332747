#include "tests/bench/split/measure.h"

#include <ATen/ATen.h>

#include <time.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "plugin/runtime/phased_graph.h"
#include "plugin/runtime/whole_graph.h"
#include "tests/runtime/transformer_layer.h"

namespace dualpipe::bench {
namespace {

class LayerStage final : public StageModule {
 public:
  explicit LayerStage(const TransformerLayer& layer) : layer_(layer) {}
  TensorList forward(const TensorList& inputs) override { return {feed_forward(layer_, attend(layer_, inputs.at(0)))}; }
  std::vector<Phase> phases() override {
    Phase attention;
    attention.spec.name = "attention";
    attention.compute = [this](const TensorList& t, PhaseContext&) { return TensorList{attend(layer_, t.at(0))}; };
    Phase mlp;
    mlp.spec.name = "mlp";
    mlp.compute = [this](const TensorList& t, PhaseContext&) { return TensorList{feed_forward(layer_, t.at(0))}; };
    return {attention, mlp};
  }

 private:
  TransformerLayer layer_;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Body>
double seconds(const Body& body) {
  const double began = cpu_seconds();
  body();
  return cpu_seconds() - began;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

SplitTimes measure_split(const SplitSize& size, bool phased) {
  at::manual_seed(1);
  const TransformerLayer layer = make_transformer_layer(size.hidden, size.heads, at::kFloat);
  const TensorList gradients{at::randn({size.tokens, size.hidden})};
  LayerStage stage(layer);
  const std::vector<Phase> phases = stage.phases();
  WeightGradStore store;
  StepRecorder recorder;
  const auto forward = [&] {
    const TensorList inputs{at::randn({size.tokens, size.hidden}).requires_grad_()};
    std::unique_ptr<StageGraph> graph;
    GraphSite site{0, 0, {}, store, recorder};
    if (phased) {
      graph = std::make_unique<PhasedGraph>(site, phases, inputs);
    } else {
      graph = std::make_unique<WholeGraph>(site, stage, inputs, false);
    }
    graph->forward();
    return graph;
  };
  double b = 0, i = 0, w = 0;
  const auto run_full = [&] {
    const auto graph = forward();
    b = seconds([&] { graph->backward(gradients); });
  };
  const auto run_split = [&] {
    const auto graph = forward();
    i = seconds([&] { graph->backward_input(gradients); });
    w = seconds([&] { graph->backward_weight(); });
  };
  std::vector<double> full, input, weight, split, ratio;
  constexpr int kWarmUp = 4;
  for (int repeat = 0; repeat < kWarmUp + size.repeats; ++repeat) {
    if (repeat % 2 == 0) run_full();
    run_split();
    if (repeat % 2 == 1) run_full();
    if (repeat < kWarmUp) continue;
    full.push_back(b);
    input.push_back(i);
    weight.push_back(w);
    split.push_back(i + w);
    ratio.push_back((i + w) / b);
  }
  return {median(full), median(input), median(weight), median(split), median(ratio)};
}

}  // namespace dualpipe::bench
