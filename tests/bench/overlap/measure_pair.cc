#include <algorithm>

#include "plugin/analysis/simulate_pair.h"
#include "plugin/runtime/loopback_transport.h"
#include "tests/bench/overlap/case.h"
#include "tests/bench/overlap/measure.h"

namespace dualpipe::bench {
namespace {

constexpr int kMicrobatches = 6;  // Nine pairs a step.

struct Kind {
  const char* name;
  bool phased;
  PairProgram program;
};

void add_pairs(const StepResult& result, nlohmann::json& pairs) {
  for (const Span& span : result.statistics.spans) {
    if (span.action.is_overlap()) pairs.push_back(1e3 * (span.end - span.start));
  }
}

// The phases of the last pair of a step as they ran, in milliseconds from the pair's start: where a miss comes from.
nlohmann::json last_pair(const StepResult& result, const PairProgram& program) {
  const std::vector<Span>& spans = result.statistics.spans;
  const auto pair =
      std::find_if(spans.rbegin(), spans.rend(), [](const Span& span) { return span.action.is_overlap(); });
  nlohmann::json phases = nlohmann::json::array();
  for (const PhaseSpan& phase : result.statistics.phases) {
    const bool of_program = phase.phase < static_cast<int>(program.forward.size());  // The loss is a phase of its own.
    if (phase.start < pair->start || phase.end > pair->end || !of_program) continue;
    phases.push_back({{"name", name_of(program, phase.part, phase.phase)},
                      {"start_ms", 1e3 * (phase.start - pair->start)},
                      {"end_ms", 1e3 * (phase.end - pair->start)},
                      {"waited_ms", 1e3 * phase.waited}});
  }
  return phases;
}

nlohmann::json measure_ratio(const Settings& settings, double ratio, ExpertGroup& experts, Overshoot& overshoot,
                             Ranks& ranks) {
  const StageCosts costs = costs_of(settings, ratio, experts, ranks);
  const Phases phases = phase_specs(costs);
  const Kind kinds[] = {{"sequence", false, in_sequence(phases, phases)}, {"merged", true, merge(phases, phases)}};
  nlohmann::json result = describe(costs, ratio);
  std::vector<BenchPipeline> pipelines;
  for (const Kind& kind : kinds) {
    pipelines.emplace_back("dualpipev", make_loopback(1)[0], costs, kind.phased, kMicrobatches, experts, overshoot);
    result[kind.name] = {{"ideal_ms", simulate(kind.program).makespan}, {"samples_ms", nlohmann::json::array()}};
  }
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      ranks.barrier();
      const StepResult step = pipelines[i].step();
      add_pairs(step, result[kinds[i].name]["samples_ms"]);
      result[kinds[i].name]["statistics"] = step.statistics.overlap_summary();
      if (kinds[i].phased) result["last_pair"] = last_pair(step, kinds[i].program);
    }
  }
  result["program"] = print(kinds[1].program);
  return result;
}

}  // namespace

nlohmann::json measure_pair(const Settings& settings, Ranks& ranks) {
  ExpertGroup experts = ranks.make_experts();
  Overshoot overshoot;
  nlohmann::json cases = nlohmann::json::array();
  for (double ratio : settings.ratios) {
    cases.push_back(measure_ratio(settings, ratio, experts, overshoot, ranks));
  }
  return {{"cases", cases}, {"overshoot", describe(overshoot)}};
}

}  // namespace dualpipe::bench
