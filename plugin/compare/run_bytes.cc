#include "plugin/compare/run_bytes.h"

#include <algorithm>
#include <optional>

#include "plugin/compare/statistics.h"

namespace dualpipe::compare {
namespace {

using ByStage = std::vector<std::vector<double>>;

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// An even part of each rank's figure for each of its stages.
ByStage divide(const RunFiles& run, std::size_t stages, std::optional<double> RankTimeline::*figure) {
  ByStage parts(stages);
  for (const RankTimeline& rank : run.ranks) {
    if (!(rank.*figure) || rank.stages.empty()) continue;
    for (const int stage : rank.stages)
      parts[stage].push_back(*(rank.*figure) / static_cast<double>(rank.stages.size()));
  }
  return parts;
}

// Bytes at a time: the last sample at or before it.
std::optional<double> bytes_at(const std::vector<MemorySample>& memory, double time) {
  const auto after = std::upper_bound(memory.begin(), memory.end(), time,
                                      [](double t, const MemorySample& sample) { return t < sample.time; });
  return after == memory.begin() ? std::nullopt : std::optional(std::prev(after)->bytes);
}

// What every F outside a pair added: from the last sample before it to the first at or after its end.
void add_growth(const RecordedStep& step, ByStage& growth) {
  for (const Span& span : step.spans) {
    if (span.action.is_overlap() || span.action.op.kind != Kind::kForward) continue;
    const std::optional<double> before = bytes_at(step.memory, span.start);
    const auto after = std::lower_bound(step.memory.begin(), step.memory.end(), span.end,
                                        [](const MemorySample& sample, double t) { return sample.time < t; });
    if (before && after != step.memory.end())
      growth[span.action.op.stage].push_back(std::max(0.0, after->bytes - *before));
  }
}

void add_share_of_peak(const RankTimeline& rank, const RecordedStep& step, ByStage& shares) {
  if (!step.peak_activation_bytes || step.peak_activations.value_or(0) == 0) return;
  for (const int stage : rank.stages) shares[stage].push_back(*step.peak_activation_bytes / *step.peak_activations);
}

}  // namespace

void add_bytes(const RunFiles& run, std::vector<CostFileStage>& stages) {
  const std::size_t count = stages.size();
  const ByStage parameters = divide(run, count, &RankTimeline::parameter_bytes);
  const ByStage gradients = divide(run, count, &RankTimeline::gradient_bytes);
  const ByStage optimizer = divide(run, count, &RankTimeline::optimizer_bytes);
  ByStage growth(count), shares(count);
  for (const RankTimeline& rank : run.ranks) {
    for (const RecordedStep& step : rank.steps) {
      add_growth(step, growth);
      add_share_of_peak(rank, step, shares);
    }
  }
  for (std::size_t stage = 0; stage < count; ++stage) {
    stages[stage].parameter_bytes = mean(parameters[stage]);
    stages[stage].gradient_bytes = mean(gradients[stage]);
    stages[stage].optimizer_bytes = mean(optimizer[stage]);
    const std::vector<double>& activations = growth[stage].empty() ? shares[stage] : growth[stage];
    if (!activations.empty()) stages[stage].activation_bytes = median(activations);
  }
}

}  // namespace dualpipe::compare
