#include "tests/runtime/phased_stage.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "tests/runtime/comparison.h"

namespace dualpipe {
namespace {

constexpr int kWidth = 8;

// The exchange and, with the sign turned, its way back: linear, and not symmetric.
at::Tensor moved(const at::Tensor& rows, int by, double scale) {
  return rows.defined() ? rows.roll(by, 0) * scale : at::Tensor();
}

struct Layer {
  std::string name;
  LayerKind kind;
  at::Tensor attention, route, up, down;
  std::function<at::Tensor(at::IntArrayRef)> ones;
};

// {x} or {residual, expert} -> {residual, routed, undefined, ids}
TensorList attend(const Layer& layer, const TensorList& inputs) {
  const at::Tensor x = inputs.size() > 1 ? inputs.at(0) + inputs.at(1) : inputs.at(0);
  const at::Tensor h = x + at::linear(at::tanh(x), layer.attention);
  const at::Tensor ones = layer.ones ? layer.ones(x.sizes()) : at::ones({}, at::kDouble);
  return {h * ones, at::linear(h, layer.route), {}, at::arange(x.size(0))};
}

// {residual, routed, ids} -> {residual, expert}
TensorList feed_forward(const Layer& layer, const TensorList& inputs) {
  const at::Tensor scale = (inputs.at(2).to(at::kDouble) + 1).unsqueeze(1);
  const at::Tensor hidden = at::gelu(at::linear(inputs.at(1), layer.up)) / scale;
  return {inputs.at(0), at::linear(hidden, layer.down)};
}

TensorList run_layer(const Layer& layer, const TensorList& inputs) {
  const TensorList h = attend(layer, inputs);
  const bool moe = layer.kind == LayerKind::kMoe;
  const TensorList y = feed_forward(layer, {h[0], moe ? moved(h[1], 1, 1.5) : h[1], h[3]});
  return {y[0], moe ? moved(y[1], -1, 0.5) : y[1]};
}

class LoggedExchange final : public PendingExchange {
 public:
  LoggedExchange(std::function<void()> awaited, std::function<TensorList()> result)
      : awaited_(std::move(awaited)), result_(std::move(result)) {}
  TensorList wait() override {
    awaited_();
    return result_();
  }

 private:
  std::function<void()> awaited_;
  std::function<TensorList()> result_;
};

using Move = std::function<TensorList(const TensorList&)>;
using Exchange = std::function<std::unique_ptr<PendingExchange>(const TensorList&, PhaseContext&)>;

Exchange exchange_of(const PhasedStageOptions& options, const std::string& name, Move move) {
  return [log = options.log, name, move = std::move(move)](const TensorList& tensors, PhaseContext&) {
    log("post " + name);
    return std::make_unique<LoggedExchange>([log, name] { log("wait " + name); },
                                            [tensors, move] { return move(tensors); });
  };
}

Phase exchange_phase(const PhasedStageOptions& options, const std::string& name, Move move, Move back) {
  Phase phase;
  phase.spec.name = name;
  phase.spec.kind = PhaseKind::kCommunication;
  phase.spec.has_backward = static_cast<bool>(back);
  phase.exchange = exchange_of(options, name, std::move(move));
  if (back) phase.exchange_back = exchange_of(options, name + " back", std::move(back));
  return phase;
}

Phase compute_phase(const PhasedStageOptions& options, const std::string& name, Move compute) {
  Phase phase;
  phase.spec.name = name;
  phase.recompute = options.recompute;
  phase.compute = [log = options.log, name, compute = std::move(compute)](const TensorList& inputs, PhaseContext&) {
    log("compute " + name);
    return compute(inputs);
  };
  return phase;
}

at::Tensor requiring_grad(at::Tensor tensor) { return tensor.set_requires_grad(true); }

void add_moe(std::vector<Phase>& phases, const PhasedStageOptions& options, const Layer& layer) {
  const auto sizes = [](const TensorList& t) {
    TensorList all = t;
    all.push_back(at::full({1}, t.at(1).size(0), at::kLong));
    return all;
  };
  const auto dispatch = [](const TensorList& t) {
    return TensorList{t.at(0), requiring_grad(moved(t.at(1), 1, 1.5)), t.at(3)};
  };
  const auto dispatch_back = [](const TensorList& g) {
    return TensorList{g.at(0), moved(g.at(1), -1, 1.5), {}, {}, {}};
  };
  const auto combine = [](const TensorList& t) { return TensorList{t.at(0), requiring_grad(moved(t.at(1), -1, 0.5))}; };
  const auto combine_back = [](const TensorList& g) { return TensorList{g.at(0), moved(g.at(1), 1, 0.5)}; };
  phases.push_back(exchange_phase(options, layer.name + ".sizes", sizes, {}));
  phases.push_back(exchange_phase(options, layer.name + ".dispatch", dispatch, dispatch_back));
  phases.push_back(
      compute_phase(options, layer.name + ".mlp", [layer](const TensorList& t) { return feed_forward(layer, t); }));
  phases.push_back(exchange_phase(options, layer.name + ".combine", combine, combine_back));
}

std::vector<Phase> phases_of(const std::vector<Layer>& layers, const PhasedStageOptions& options) {
  std::vector<Phase> phases;
  for (const Layer& layer : layers) {
    phases.push_back(
        compute_phase(options, layer.name + ".attention", [layer](const TensorList& t) { return attend(layer, t); }));
    if (layer.kind == LayerKind::kMoe) {
      add_moe(phases, options, layer);
    } else {
      phases.push_back(compute_phase(options, layer.name + ".mlp", [layer](const TensorList& t) {
        return feed_forward(layer, {t.at(0), t.at(1), t.at(3)});
      }));
    }
  }
  if (!options.ends_in_combine) {
    phases.push_back(compute_phase(options, "sum", [](const TensorList& t) { return TensorList{t.at(0) + t.at(1)}; }));
  }
  for (std::size_t i = 0; i < phases.size() && !options.costs.empty(); ++i) {
    PhaseSpec& spec = phases[i].spec;
    spec.forward = spec.backward_input = spec.backward_weight = options.costs[i % options.costs.size()];
  }
  return phases;
}

}  // namespace

std::shared_ptr<StageModule> phased_stage(int stage, const PhasedStageOptions& options) {
  std::vector<Layer> layers;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (std::size_t i = 0; i < options.layers.size(); ++i) {
    const std::uint64_t seed = 1000 * stage + 10 * i;
    Layer layer{fmt::format("{}", i),
                options.layers[i],
                weight({kWidth, kWidth}, seed),
                weight({kWidth, kWidth}, seed + 1),
                weight({12, kWidth}, seed + 2),
                weight({kWidth, 12}, seed + 3),
                options.ones};
    parameters.emplace_back(layer.name + "_attention", layer.attention);
    parameters.emplace_back(layer.name + "_route", layer.route);
    parameters.emplace_back(layer.name + "_up", layer.up);
    parameters.emplace_back(layer.name + "_down", layer.down);
    layers.push_back(std::move(layer));
  }
  const auto forward = [layers, ends_in_combine = options.ends_in_combine](const TensorList& inputs) {
    TensorList values = inputs;
    for (const Layer& layer : layers) values = run_layer(layer, values);
    return ends_in_combine ? values : TensorList{values[0] + values[1]};
  };
  return function_stage(std::move(parameters), forward, {},
                        options.phased ? phases_of(layers, options) : std::vector<Phase>());
}

}  // namespace dualpipe
