// tests/browser/write_reports.cc
//
// Comparisons to look at, made of simulated timelines, each as <name>.json and <name>.html in a folder:
//   write_reports FOLDER
//   runs    8 ranks, 20 micro-batches, four schedules and one that failed, with phases and memory
//   large   64 ranks, 128 micro-batches, two schedules
//   skewed  two pipelines of one schedule, the second a second behind the first, with actions that wait for messages
//   sparse  one schedule of a host that knows losses and times alone, under a name that is markup
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "plugin/analysis/simulate.h"
#include "plugin/compare/comparison_json.h"
#include "plugin/compare/html_report.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace {

using namespace dualpipe;

constexpr double kActivationBytes = 3 << 20;

struct Case {
  std::string schedule;  // As shown.
  std::string generator;
  int ranks;
  int num_microbatches;
  double forward;  // Seconds of a stage's F, I and W.
};

// `unevenness` is how much more the last stage takes than the first.
CostModel costs(const Schedule& schedule, double forward, double unevenness) {
  CostModel model;
  const int stages = schedule.placement.stages();
  for (int stage = 0; stage < stages; ++stage) {
    const double time = forward * (1 + unevenness * stage / stages);
    model.per_stage.push_back({time, time, time, 2.25 * time});
  }
  model.latency = unevenness * forward;
  return model;
}

void add_phases(RankPicture& rank, const Op& op, double start, double end) {
  const double quarter = (end - start) / 4;
  const std::string name = to_string(op) + " 0.";
  rank.phases.push_back({name + "attention", start, start + quarter, std::nullopt});
  rank.phases.push_back({name + "dispatch", start + quarter, start + 2 * quarter, quarter / 2});
  rank.phases.push_back({name + "mlp", start + 2 * quarter, start + 3 * quarter, std::nullopt});
  rank.phases.push_back({name + "combine", start + 3 * quarter, end, quarter / 4});
}

void add_phases(RankPicture& rank, const Span& span) {
  add_phases(rank, span.action.op, span.start, span.end);
  if (span.action.paired) add_phases(rank, *span.action.paired, span.start, span.end);
}

double memory_change(const Op& op) {
  if (op.kind == Kind::kForward) return kActivationBytes;
  return op.kind == Kind::kBackwardInput ? 0 : -kActivationBytes;
}

void add_memory(RankPicture& rank) {
  double live = 0;
  rank.memory.push_back({0, live});
  for (const Span& span : rank.spans) {
    if (span.action.op.kind == Kind::kForward) rank.memory.push_back({span.start, live += kActivationBytes});
    const Op& last = span.action.paired ? *span.action.paired : span.action.op;
    if (last.kind != Kind::kForward) rank.memory.push_back({span.end, live += memory_change(last)});
  }
}

StepPicture picture(const Schedule& schedule, const CostModel& cost) {
  StepPicture result;
  const Timeline timeline = simulate(schedule, cost);
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank)
    result.push_back({rank, schedule.placement.stages_of(rank), timeline.ranks[rank], {}, {}, 0});
  return result;
}

double makespan(const StepPicture& picture) {
  double last = 0;
  for (const RankPicture& rank : picture) last = std::max(last, rank.spans.back().end);
  return last;
}

std::vector<double> curve(double first, double last, double noise) {
  std::vector<double> values;
  for (int iteration = 0; iteration < 60; ++iteration) {
    const double decay = std::exp(-iteration / 18.0) + 0.02 * std::sin(1.7 * iteration);
    values.push_back((last + (first - last) * decay) * (1 + noise * std::sin(5.0 * iteration)));
  }
  return values;
}

ScheduleFigures figures(const Case& one, double noise) {
  const Schedule schedule = builtin_registry().make(one.generator, {one.ranks, one.num_microbatches});
  ScheduleFigures run;
  run.schedule = one.schedule;
  run.measured = picture(schedule, costs(schedule, one.forward, 0.08));
  run.simulated = picture(schedule, costs(schedule, one.forward * 1.03, 0));
  for (RankPicture& rank : run.measured) {
    for (const Span& span : rank.spans) add_phases(rank, span);
    add_memory(rank);
  }
  run.pipeline_ms = 1e3 * makespan(run.measured);
  run.simulated_ms = 1e3 * makespan(run.simulated);
  run.ms = Estimate{*run.pipeline_ms + 6, *run.pipeline_ms + 4.5, *run.pipeline_ms + 11};
  run.predicted_ms = 1e3 * makespan(run.simulated) + 6;
  run.predicted_difference = *run.predicted_ms / run.ms->value - 1;
  run.bubble = 1 - simulate(schedule, costs(schedule, one.forward, 0.08)).utilization();
  run.exposed_ms = 0.04 * *run.pipeline_ms;
  run.utilization = 0.96 - *run.bubble;
  run.peak_activations = std::ranges::max(peak_activations(schedule));
  run.peak_activation_bytes = *run.peak_activations * kActivationBytes;
  run.parameter_copies = schedule.placement.is_bidirectional() ? 2 : 1;
  run.parameter_bytes = *run.parameter_copies * 41'943'040;
  run.optimizer_bytes = 2 * *run.parameter_bytes;
  run.losses = curve(5.56, 2.1, noise);
  const std::vector<double> norms = curve(4.2, 0.9, noise);
  run.grad_norms.assign(norms.begin(), norms.end());
  run.loss_difference = noise;
  run.grad_norm_difference = noise;
  return run;
}

Comparison comparison(const std::string& title, const std::vector<Case>& cases) {
  Comparison result;
  result.options.title = title;
  result.options.command = "dualpipe ab --config " + title + " --iterations 60 --nproc 8 -o output/ab";
  result.options.baseline = cases.front().schedule;
  result.options.cost = CostFile{.name = "output/profile/cost.json", .source = {}, .stages = {}, .layers = {}};
  result.iterations = 60;
  result.rounds = 3;
  for (const Case& one : cases) {
    ScheduleFigures run = figures(one, result.runs.empty() ? 0 : 3e-7 * (result.runs.size() - 1));
    const double base = result.runs.empty() ? run.ms->value : result.runs.front().ms->value;
    const double speedup = base / run.ms->value;
    run.speedup = SpeedUp{speedup, 0.985 * speedup, 1.012 * speedup};
    result.runs.push_back(std::move(run));
  }
  return result;
}

Comparison runs() {
  Comparison result = comparison("configs/gpt_moe_tiny.yaml", {{"builtin_1f1b", "1f1b", 8, 20, 0.004},
                                                               {"zb1p", "zb1p", 8, 20, 0.004},
                                                               {"dualpipev", "dualpipev", 8, 20, 0.002},
                                                               {"dualpipe", "dualpipe", 8, 20, 0.004}});
  ScheduleFigures failed;
  failed.schedule = "mine.csv";
  failed.failure = "[mine.csv] rank 3: 2B7 needs 3B7, which no rank runs </script><b>\xE2\x80\xA8";
  result.runs.push_back(std::move(failed));
  return result;
}

Span span(const char* cell, double start, double end, double waited = 0) {
  return {parse_action(cell), start, end, waited};
}

RankTimeline rank_of(int rank, std::vector<Span> spans) {
  RankTimeline timeline;
  timeline.schedule = "1f1b";
  timeline.rank = rank;
  timeline.pipeline_rank = rank % 2;
  timeline.world_size = 4;
  timeline.pipeline_model_parallel_size = timeline.num_stages = timeline.num_microbatches = 2;
  timeline.stages = {rank % 2};
  RecordedStep step;
  step.iteration = 1;
  step.began = rank / 2;
  step.seconds = 10;
  step.spans = std::move(spans);
  timeline.steps.push_back(std::move(step));
  return timeline;
}

// Nine seconds a pipeline, of which rank 0 lies idle for 3 and waits for 1 within an action, rank 1 lies idle for 3.
Comparison skewed() {
  RunFiles run;
  run.iterations = {{1, 2.5, 1.0, 1e4}};
  for (const int first : {0, 2}) {
    run.ranks.push_back(
        rank_of(first, {span("0F0", 0, 1), span("0F1", 1, 2), span("0B0", 4, 6, 1), span("0B1", 7, 9)}));
    run.ranks.push_back(
        rank_of(first + 1, {span("1F0", 1, 2), span("1B0", 2, 4), span("1F1", 4, 5), span("1B1", 5, 7)}));
  }
  ComparisonOptions options;
  options.title = "skewed";
  options.baseline = "1f1b";
  options.warmup = 0;
  return compare_runs({{"1f1b", std::nullopt, {run}}}, options);
}

Comparison sparse() {
  Comparison result;
  result.options.title = "</title><script>alert(1)</script> & more";
  result.options.baseline = "<b>1f1b</b>";
  ScheduleFigures run;
  run.schedule = "<b>1f1b</b>";
  run.ms = Estimate{51.5, 50, 53};
  run.losses = {2.5, NAN, 2.25};
  result.runs.push_back(std::move(run));
  return result;
}

void write(const std::filesystem::path& folder, const std::string& name, const Comparison& comparison) {
  const std::string json = to_json(comparison);
  std::ofstream(folder / (name + ".json")) << json;
  std::ofstream(folder / (name + ".html")) << html_report(json);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_reports FOLDER\n";
    return 2;
  }
  write(argv[1], "runs", runs());
  write(argv[1], "large",
        comparison("64 ranks", {{"builtin_1f1b", "1f1b", 64, 128, 0.004}, {"dualpipe", "dualpipe", 64, 128, 0.004}}));
  write(argv[1], "skewed", skewed());
  write(argv[1], "sparse", sparse());
  return 0;
}
