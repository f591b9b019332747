#include "plugin/compare/measured_figures.h"

#include <algorithm>
#include <utility>

#include "plugin/analysis/measured_cost.h"
#include "plugin/compare/measured_steps.h"
#include "plugin/schedule/error.h"

namespace dualpipe::compare {
namespace {

constexpr double kMs = 1e3;

// The warm-up counts iterations, whatever number the first one has.
std::vector<MeasuredStep> all_steps(const std::vector<RunFiles>& rounds, std::size_t warmup) {
  std::vector<MeasuredStep> steps;
  for (const RunFiles& round : rounds) {
    const std::int64_t first = round.iterations.at(warmup).iteration;
    for (MeasuredStep& step : measured_steps(round)) {
      if (step.iteration >= first && step.timeline.makespan() > 0) steps.push_back(std::move(step));
    }
  }
  return steps;
}

template <class Value>
std::optional<Value> larger(std::optional<Value> largest, std::optional<Value> value) {
  return largest && value ? std::max(largest, value) : std::nullopt;
}

// Nothing where one of the ranks does not say.
template <class Get>
std::optional<double> largest_of(const std::vector<RankTimeline>& ranks, Get get) {
  std::optional<double> largest = get(ranks.front());
  for (const RankTimeline& rank : ranks) largest = larger(largest, get(rank));
  return largest;
}

void add_layout(ScheduleFigures& figures, const std::vector<RankTimeline>& ranks) {
  const RankTimeline& first = ranks.front();
  std::size_t held = 0;
  std::size_t chunks = 0;
  for (const RankTimeline& rank : ranks) {
    held += rank.stages.size();
    chunks = std::max(chunks, rank.stages.size());
  }
  const double pipelines = static_cast<double>(first.world_size) / first.pipeline_model_parallel_size;
  figures.num_stages = first.num_stages;
  figures.chunks = static_cast<int>(chunks);
  figures.pipeline_size = first.pipeline_model_parallel_size;
  figures.parameter_copies = static_cast<double>(held) / pipelines / first.num_stages;
  figures.parameter_bytes = largest_of(ranks, [](const RankTimeline& rank) { return rank.parameter_bytes; });
  figures.gradient_bytes = largest_of(ranks, [](const RankTimeline& rank) { return rank.gradient_bytes; });
  figures.optimizer_bytes = largest_of(ranks, [](const RankTimeline& rank) { return rank.optimizer_bytes; });
}

// In seconds, mean of the ranks; nothing where one of them does not say.
std::optional<double> exposed_of(const MeasuredStep& step) {
  double sum = 0;
  for (const RecordedStep* record : step.records) {
    if (!record->exposed_seconds) return std::nullopt;
    sum += *record->exposed_seconds;
  }
  return sum / static_cast<double>(step.records.size());
}

// Time in which the rank was in an action and did not wait for a message. One that is finished in the middle of the
// next counts once.
double covered(const std::vector<Span>& spans) {
  double sum = 0;
  double reached = 0;
  for (const Span& span : spans) {
    sum += std::max(0.0, span.end - std::max(span.start, reached)) - span.waited;
    reached = std::max(reached, span.end);
  }
  return std::max(0.0, sum);
}

double covered_share(const MeasuredStep& step) {
  double sum = 0;
  for (const std::vector<Span>& spans : step.timeline.ranks) sum += covered(spans);
  return sum / (static_cast<double>(step.timeline.ranks.size()) * step.timeline.makespan());
}

double busy_share(const MeasuredStep& step) {
  return std::max(0.0, covered_share(step) - exposed_of(step).value_or(0) / step.timeline.makespan());
}

template <class Get>
std::optional<double> median_of(const std::vector<MeasuredStep>& steps, Get get) {
  std::vector<double> values;
  for (const MeasuredStep& step : steps) {
    const std::optional<double> value = get(step);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return median(std::move(values));
}

void add_medians(ScheduleFigures& figures, const std::vector<MeasuredStep>& steps) {
  figures.pipeline_ms =
      median_of(steps, [](const MeasuredStep& step) { return std::optional(kMs * step.timeline.makespan()); });
  figures.bubble = median_of(steps, [](const MeasuredStep& step) { return std::optional(1 - covered_share(step)); });
  figures.exposed_ms = median_of(steps, exposed_of);
  if (figures.exposed_ms) *figures.exposed_ms *= kMs;
  figures.utilization = median_of(steps, [](const MeasuredStep& step) { return std::optional(busy_share(step)); });
}

void add_peaks(ScheduleFigures& figures, const std::vector<MeasuredStep>& steps) {
  int peak = 0;
  std::optional<double> bytes = 0;
  for (const MeasuredStep& step : steps) {
    for (std::size_t row = 0; row < step.records.size(); ++row) {
      peak = std::max(peak, step.records[row]->peak_activations.value_or(step.timeline.peak_activations[row]));
      bytes = larger(bytes, step.records[row]->peak_activation_bytes);
    }
  }
  figures.peak_activations = peak;
  figures.peak_activation_bytes = bytes;
}

const MeasuredStep& typical(const std::vector<MeasuredStep>& steps) {
  std::vector<const MeasuredStep*> sorted;
  for (const MeasuredStep& step : steps) sorted.push_back(&step);
  std::stable_sort(sorted.begin(), sorted.end(), [](const MeasuredStep* a, const MeasuredStep* b) {
    return a->timeline.makespan() < b->timeline.makespan();
  });
  return *sorted[(sorted.size() - 1) / 2];
}

bool is_beside(const MeasuredStep& step, const MeasuredStep& next) {
  return step.iteration == next.iteration && step.pipeline < next.pipeline;
}

// The same step in every pipeline of its run. They stand together in `steps`, by pipeline.
std::vector<const MeasuredStep*> replicas_of(const std::vector<MeasuredStep>& steps, const MeasuredStep& step) {
  const MeasuredStep* first = &step;
  while (first != &steps.front() && is_beside(first[-1], *first)) --first;
  std::vector<const MeasuredStep*> replicas{first};
  while (replicas.back() != &steps.back() && is_beside(*replicas.back(), replicas.back()[1]))
    replicas.push_back(replicas.back() + 1);
  return replicas;
}

// Seconds since `zero`, a Unix time.
RankPicture picture_of(const MeasuredStep& step, std::size_t row, const std::vector<RankTimeline>& ranks, double zero) {
  RankPicture picture;
  picture.rank = step.ranks[row];
  picture.pipeline = step.pipeline;
  picture.stages = ranks[step.ranks[row]].stages;
  const double later = step.began - zero;
  for (const Span& span : step.timeline.ranks[row])
    picture.spans.push_back({span.action, span.start + later, span.end + later, span.waited});
  const double offset = step.offsets[row] + later;
  for (const PhaseRecord& phase : step.records[row]->phases)
    picture.phases.push_back({phase.name, phase.start + offset, phase.end + offset, phase.waited});
  for (const MemorySample& sample : step.records[row]->memory)
    picture.memory.push_back({sample.time + offset, sample.bytes});
  return picture;
}

StepPicture picture_of(const std::vector<const MeasuredStep*>& replicas, const std::vector<RankTimeline>& ranks) {
  double zero = replicas.front()->began;
  for (const MeasuredStep* step : replicas) zero = std::min(zero, step->began);
  StepPicture picture;
  for (const MeasuredStep* step : replicas) {
    for (std::size_t row = 0; row < step->ranks.size(); ++row) picture.push_back(picture_of(*step, row, ranks, zero));
  }
  return picture;
}

// Every pipeline does what `timeline` says.
StepPicture simulated_picture(const Timeline& timeline, const StepPicture& measured) {
  StepPicture picture;
  for (std::size_t row = 0; row < measured.size(); ++row) {
    const std::vector<Span>& spans = timeline.ranks[row % timeline.ranks.size()];
    picture.push_back({measured[row].rank, measured[row].stages, spans, {}, {}, measured[row].pipeline});
  }
  return picture;
}

void add_simulation(ScheduleFigures& figures, const std::vector<MeasuredStep>& steps, const MeasuredStep& step) {
  std::vector<Timeline> timelines;
  for (const MeasuredStep& measured : steps) timelines.push_back(measured.timeline);
  const CostModel cost = measure_cost(timelines, *figures.num_stages).cost;
  const Timeline simulated = simulate(measured_schedule(step, figures.schedule), cost);
  figures.simulated_ms = kMs * simulated.makespan();
  figures.simulated = simulated_picture(simulated, figures.measured);
}

}  // namespace

void add_measured_figures(ScheduleFigures& figures, const std::vector<RunFiles>& rounds, std::size_t warmup) {
  const std::vector<RankTimeline>& ranks = rounds.front().ranks;
  if (ranks.empty()) return;
  add_layout(figures, ranks);
  const std::vector<MeasuredStep> steps = all_steps(rounds, warmup);
  if (steps.empty()) return;
  add_medians(figures, steps);
  add_peaks(figures, steps);
  const MeasuredStep& step = typical(steps);
  figures.measured = picture_of(replicas_of(steps, step), ranks);
  try {
    add_simulation(figures, steps, step);
  } catch (const ScheduleError& error) {
    // What was recorded is no whole schedule, for example where W ran outside the step: the measured figures stand.
    figures.no_simulation = error.what();
  }
}

}  // namespace dualpipe::compare
