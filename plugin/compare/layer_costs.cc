// layer_costs() of run_cost.h.
#include <algorithm>
#include <set>

#include "plugin/compare/phase_samples.h"
#include "plugin/compare/run_cost.h"
#include "plugin/compare/statistics.h"

namespace dualpipe {
namespace {

using compare::PhaseSamples;
using compare::StagePhases;

constexpr double kMilliseconds = 1000;
constexpr const char* kOutput = "output";

double median_ms(const std::vector<double>& seconds) { return seconds.empty() ? 0 : kMilliseconds * median(seconds); }

struct PhaseCost {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
};

PhaseCost cost_of(const PhaseSamples& samples) {
  if (samples.is_exchange) return {median_ms(samples.waited_forward), median_ms(samples.waited_backward), 0};
  PhaseCost cost{median_ms(samples.forward), median_ms(samples.backward_input), median_ms(samples.backward_weight)};
  if (samples.backward_input.empty() && samples.backward_weight.empty())
    cost.backward_input = cost.backward_weight = median_ms(samples.backward) / 2;
  return cost;
}

std::string layer_of(const std::string& phase) { return phase.substr(0, phase.find('.')); }

std::vector<std::pair<std::string, const PhaseSamples*>> in_order(const StagePhases& phases) {
  std::vector<std::pair<std::string, const PhaseSamples*>> ordered;
  for (const auto& [name, samples] : phases) ordered.emplace_back(name, &samples);
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.second->order < b.second->order; });
  return ordered;
}

std::vector<LayerCost> layers_of(const StagePhases& phases) {
  std::vector<LayerCost> layers;
  for (const auto& [name, samples] : in_order(phases)) {
    const std::string layer = layer_of(name);
    const bool belongs = !layers.empty() && (layers.back().name == layer || name == kOutput);
    if (!belongs) layers.push_back({layer, 0, 0, 0, {}});
    const PhaseCost cost = cost_of(*samples);
    layers.back().forward += cost.forward;
    layers.back().backward_input += cost.backward_input;
    layers.back().backward_weight += cost.backward_weight;
  }
  return layers;
}

}  // namespace

std::vector<LayerCost> layer_costs(const RunFiles& run) {
  std::vector<LayerCost> layers;
  std::set<std::string> names;
  for (const StagePhases& phases : compare::sample_phases(run)) {
    for (const LayerCost& layer : layers_of(phases)) {
      if (!names.insert(layer.name).second) return {};
      layers.push_back(layer);
    }
  }
  return layers;
}

}  // namespace dualpipe
