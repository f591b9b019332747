#include "plugin/compare/measured_steps.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Pipeline = std::vector<const RankTimeline*>;  // By pipeline rank.

std::vector<Pipeline> pipelines_of(const std::vector<RankTimeline>& ranks) {
  if (ranks.empty()) return {};
  const auto size = static_cast<std::size_t>(ranks.front().pipeline_model_parallel_size);
  std::vector<Pipeline> pipelines(ranks.size() / size, Pipeline(size));
  std::vector<std::size_t> seen(size, 0);
  for (const RankTimeline& rank : ranks) pipelines[seen[rank.pipeline_rank]++][rank.pipeline_rank] = &rank;
  return pipelines;
}

const RecordedStep* find_step(const RankTimeline& rank, std::int64_t iteration) {
  const auto found = std::lower_bound(rank.steps.begin(), rank.steps.end(), iteration,
                                      [](const RecordedStep& step, std::int64_t i) { return step.iteration < i; });
  return found != rank.steps.end() && found->iteration == iteration ? &*found : nullptr;
}

std::vector<const RecordedStep*> records_of(const Pipeline& pipeline, std::int64_t iteration) {
  std::vector<const RecordedStep*> records;
  for (const RankTimeline* rank : pipeline) {
    const RecordedStep* record = find_step(*rank, iteration);
    if (record == nullptr) return {};
    records.push_back(record);
  }
  return records;
}

std::optional<double> first_start(const std::vector<const RecordedStep*>& records) {
  std::optional<double> first;
  for (const RecordedStep* record : records) {
    if (!record->spans.empty())
      first = std::min(first.value_or(std::numeric_limits<double>::max()), record->began + record->spans.front().start);
  }
  return first;
}

int count_peak(const std::vector<Span>& spans) {
  int live = 0;
  int peak = 0;
  for (const Span& span : spans) {
    if (span.action.op.kind == Kind::kForward) peak = std::max(peak, ++live);
    const Kind last = span.action.paired.value_or(span.action.op).kind;
    if (last == Kind::kBackward || last == Kind::kBackwardWeight) --live;
  }
  return peak;
}

MeasuredStep join(const Pipeline& pipeline, std::vector<const RecordedStep*> records, double first) {
  MeasuredStep step;
  step.iteration = records.front()->iteration;
  step.began = first;
  for (std::size_t row = 0; row < pipeline.size(); ++row) {
    const double offset = records[row]->began - first;
    std::vector<Span>& spans = step.timeline.ranks.emplace_back(records[row]->spans);
    for (Span& span : spans) span = {span.action, span.start + offset, span.end + offset, span.waited};
    step.timeline.peak_activations.push_back(count_peak(spans));
    step.ranks.push_back(pipeline[row]->rank);
    step.offsets.push_back(offset);
  }
  step.records = std::move(records);
  return step;
}

}  // namespace

std::vector<MeasuredStep> measured_steps(const RunFiles& run) {
  std::vector<MeasuredStep> steps;
  const std::vector<Pipeline> pipelines = pipelines_of(run.ranks);
  for (std::size_t pipeline = 0; pipeline < pipelines.size(); ++pipeline) {
    for (const RecordedStep& step : pipelines[pipeline].front()->steps) {
      auto records = records_of(pipelines[pipeline], step.iteration);
      const std::optional<double> first = first_start(records);
      if (!first) continue;
      steps.push_back(join(pipelines[pipeline], std::move(records), *first));
      steps.back().pipeline = static_cast<int>(pipeline);
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const MeasuredStep& a, const MeasuredStep& b) { return a.iteration < b.iteration; });
  return steps;
}

Schedule measured_schedule(const MeasuredStep& step, const std::string& name) {
  std::vector<Row> rows;
  for (const std::vector<Span>& spans : step.timeline.ranks) {
    Row& row = rows.emplace_back();
    for (const Span& span : spans) row.push_back(span.action);
  }
  std::ostringstream csv;
  print_rows(csv, rows);
  return parse_schedule(csv.str(), name);
}

}  // namespace dualpipe
