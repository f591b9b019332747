#include "plugin/cli/profile_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "plugin/cli/summary.h"

namespace dualpipe::cli {
namespace {

constexpr const char* kColumns = "{:<10}{:>9}{:>9}{:>9}{:>9}{:>8}{:>12}{:>12}{:>13}\n";
constexpr const char* kLayerColumns = "{:<12}{:>9}{:>9}{:>9}\n";

std::string ms(double value) { return fmt::format("{:.3f}", value); }
std::string ms(const std::optional<double>& value) { return value ? ms(*value) : "-"; }
std::string bytes(const std::optional<double>& value) { return value ? byte_text(*value) : "-"; }

double in_sequence(const StageCost& cost) { return cost.forward + cost.backward_input + cost.backward_weight; }

std::string gain(const std::optional<double>& pair_share) {
  return pair_share ? fmt::format("{:+.0f}%", 100 * (*pair_share - 1)) : "-";
}

std::string stage_lines(const RunCost& cost) {
  std::string text =
      fmt::format(kColumns, "stage", "F", "I", "W", "F&B", "gain", "all-to-all", "parameters", "activations");
  for (std::size_t i = 0; i < cost.file.stages.size(); ++i) {
    const CostFileStage& stage = cost.file.stages[i];
    text += fmt::format(kColumns, i, ms(stage.cost.forward), ms(stage.cost.backward_input),
                        ms(stage.cost.backward_weight), ms(stage.cost.overlapped), gain(cost.pair_share[i]),
                        ms(stage.all_to_all), bytes(stage.parameter_bytes), bytes(stage.activation_bytes));
  }
  return text;
}

std::string layer_lines(const CostFile& file) {
  if (file.layers.empty()) {
    return "";
  }
  std::string text = "\n" + fmt::format(kLayerColumns, "layer", "F", "I", "W");
  for (const LayerCost& layer : file.layers) {
    text +=
        fmt::format(kLayerColumns, layer.name, ms(layer.forward), ms(layer.backward_input), ms(layer.backward_weight));
  }
  return text;
}

// How much longer than their mean the slowest stage takes.
std::string describe_balance(const CostFile& file) {
  double sum = 0, most = 0;
  std::size_t slowest = 0;
  for (std::size_t i = 0; i < file.stages.size(); ++i) {
    const double cost = in_sequence(file.stages[i].cost);
    sum += cost;
    slowest = cost > most ? i : slowest;
    most = std::max(most, cost);
  }
  const double mean = sum / static_cast<double>(file.stages.size());
  return mean > 0 ? fmt::format("stage {} takes {} of the mean stage", slowest, fmt::format("{:.2f}x", most / mean))
                  : "stages take no time";
}

}  // namespace

std::string to_table(const RunCost& cost) {
  const CostFile& file = cost.file;
  std::string text = stage_lines(cost) + layer_lines(file);
  text += fmt::format(
      "\nMilliseconds. I and W: input and weight gradient, B = I + W. F&B: a forward of the stage and a backward of "
      "another\n"
      "in one pair; gain: against the two one after the other. all-to-all: exchanges between the ranks of a stage, in "
      "F\n"
      "and B together. activations: of one micro-batch.\n\n"
      "latency        {} ms from one rank to the next\n"
      "step overhead  {} ms of a step lie outside its schedule\n"
      "balance        {}\n",
      ms(file.latency), ms(file.step_overhead), describe_balance(file));
  if (cost.measured > 0) {
    text += fmt::format("check          the run's own order takes {} ms simulated, {} measured ({:+.1f}%)\n",
                        ms(cost.simulated), ms(cost.measured), 100 * (cost.simulated / cost.measured - 1));
  }
  for (const std::string& note : cost.notes) {
    text += fmt::format("{}\n", note);
  }
  return text;
}

}  // namespace dualpipe::cli
