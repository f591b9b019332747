#include "plugin/analysis/measured_cost.h"

#include <algorithm>
#include <optional>

#include "plugin/analysis/cost_samples.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using analysis::CostSamples;
using analysis::StageSamples;
using analysis::typical;

constexpr double kEvenly = 0.5;

// What is known of a stage by itself, for what it lacks to be filled from the others.
struct StageFigures {
  double forward = 0;
  double backward = 0;
  std::optional<double> input_share;  // I / (I + W).
  std::optional<double> overlapped;
  std::optional<double> pair_share;  // Of F and of the B that it ran with.
};

StageFigures figures_of(const StageSamples& samples, int stage) {
  if (samples.forward.empty() || samples.backward.empty()) {
    throw ScheduleError("measured cost", "stage " + std::to_string(stage) + " must have run " +
                                             (samples.forward.empty() ? "F" : "B, or I and W,") +
                                             " outside pairs, got no such action; record a step of another schedule, "
                                             "for example zb1p");
  }
  StageFigures figures{typical(samples.forward), typical(samples.backward), {}, {}, {}};
  if (!samples.backward_input.empty() && !samples.backward_weight.empty()) {
    const double input = typical(samples.backward_input);
    const double sum = input + typical(samples.backward_weight);
    figures.input_share = sum > 0 ? input / sum : kEvenly;
  }
  if (!samples.overlapped.empty()) {
    figures.overlapped = typical(samples.overlapped);
  }
  return figures;
}

std::optional<double> pair_share(const std::vector<StageFigures>& stages, int stage, const StageSamples& samples) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < samples.overlapped.size(); ++i) {
    const double in_sequence = stages[stage].forward + stages[samples.overlapped_with[i]].backward;
    if (in_sequence > 0) {
      shares.push_back(samples.overlapped[i] / in_sequence);
    }
  }
  return shares.empty() ? std::nullopt : std::optional(typical(std::move(shares)));
}

std::vector<StageFigures> figures_of(const std::vector<StageSamples>& samples) {
  std::vector<StageFigures> figures;
  for (const StageSamples& stage : samples) {
    figures.push_back(figures_of(stage, static_cast<int>(figures.size())));
  }
  for (std::size_t stage = 0; stage < samples.size(); ++stage) {
    figures[stage].pair_share = pair_share(figures, static_cast<int>(stage), samples[stage]);
  }
  return figures;
}

// "stage 1" or "stages 1, 2 and 5".
std::string name_stages(const std::vector<int>& stages) {
  std::string text = stages.size() == 1 ? "stage " : "stages ";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    text += i == 0 ? "" : i + 1 == stages.size() ? " and " : ", ";
    text += std::to_string(stages[i]);
  }
  return text;
}

// What the stages that have a figure say on the whole, for those that have none.
template <typename Figure>
std::optional<double> typical_over(const std::vector<StageFigures>& stages, Figure figure) {
  std::vector<double> known;
  for (const StageFigures& stage : stages) {
    if (const std::optional<double> value = figure(stage)) {
      known.push_back(*value);
    }
  }
  return known.empty() ? std::nullopt : std::optional(typical(std::move(known)));
}

class Filler {
 public:
  explicit Filler(std::vector<StageFigures> stages)
      : stages_(std::move(stages)),
        share_(typical_over(stages_, [](const StageFigures& stage) { return stage.input_share; })),
        pair_share_(typical_over(stages_, [](const StageFigures& stage) { return stage.pair_share; })) {}

  StageCost cost_of(int stage) const {
    const StageFigures& known = stages_[stage];
    const double share = known.input_share.value_or(share_.value_or(kEvenly));
    const double in_sequence = known.forward + known.backward;
    return {known.forward, share * known.backward, (1 - share) * known.backward,
            known.overlapped.value_or(pair_share_.value_or(1) * in_sequence)};
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    const auto add = [&notes](const std::vector<int>& stages, const std::string& what) {
      if (!stages.empty()) {
        notes.push_back(name_stages(stages) + what);
      }
    };
    add(lacking([](const StageFigures& stage) { return stage.input_share.has_value(); }),
        share_ ? " ran B alone: divided into I and W as in the other stages"
               : " ran B alone: divided evenly into I and W");
    add(lacking([](const StageFigures& stage) { return stage.overlapped.has_value(); }),
        pair_share_ ? " ran no pair: F&B as in the other stages, against their F and B"
                    : " ran no pair: F&B is F + B, nothing is gained");
    return notes;
  }

 private:
  template <typename Has>
  std::vector<int> lacking(Has has) const {
    std::vector<int> stages;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (!has(stages_[stage])) {
        stages.push_back(static_cast<int>(stage));
      }
    }
    return stages;
  }

  std::vector<StageFigures> stages_;
  std::optional<double> share_;
  std::optional<double> pair_share_;
};

}  // namespace

MeasuredCost measure_cost(const std::vector<Timeline>& steps, int stages) {
  const CostSamples samples = analysis::sample_costs(steps, stages);
  const std::vector<StageFigures> figures = figures_of(samples.stages);
  const Filler filler(figures);
  MeasuredCost measured;
  measured.overhead = samples.overhead;
  measured.notes = filler.notes();
  measured.cost.latency = std::max(0.0, samples.message - samples.overhead);
  for (int stage = 0; stage < stages; ++stage) {
    StageCost cost = filler.cost_of(stage);
    cost.forward += samples.overhead;
    cost.backward_input += samples.overhead;
    cost.backward_weight += samples.overhead;
    cost.overlapped += samples.overhead;
    measured.cost.per_stage.push_back(cost);
    measured.pair_share.push_back(figures[stage].pair_share);
  }
  return measured;
}

}  // namespace dualpipe
