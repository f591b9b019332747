#include <algorithm>

#include "plugin/analysis/simulate_pair.h"
#include "plugin/runtime/loopback_transport.h"
#include "plugin/schedule/text.h"
#include "tests/bench/overlap/case.h"
#include "tests/bench/overlap/measure.h"

namespace dualpipe::bench {
namespace {

constexpr int kMicrobatches = 8;  // Thirteen pairs a step, one behind the other.

struct Kind {
  const char* name;
  bool phased;
  PairProgram program;
};

// From the start of a pair to that of the one after the next, halved, since pairs alternate and leave some of their
// work to the next.
void add_pairs(const StepResult& result, nlohmann::json& samples) {
  std::vector<double> starts;
  for (const Span& span : result.statistics.spans) {
    if (span.action.is_overlap()) starts.push_back(1e3 * span.start);
  }
  for (std::size_t i = 2; i < starts.size(); ++i) samples.push_back((starts[i] - starts[i - 2]) / 2);
}

// Merged pairs alternate: one begins with a gradient that is there, the next with the loss that the one before computes
// at its end, and so not before that one is closed.
double ideal_ms(const PairProgram& program, bool phased) {
  const double alone = simulate(program).makespan;
  return phased ? (alone + makespan_in_a_row(program)) / 2 : alone;
}

std::string pair_of(const PhaseSpan& phase, const std::vector<Span>& spans) {
  const auto is_of = [&](const Op& op) { return op.stage == phase.stage && op.micro_batch == phase.micro_batch; };
  const auto found = std::find_if(spans.begin(), spans.end(), [&](const Span& span) {
    return span.action.is_overlap() && is_of(phase.part == PhasePart::kForward ? span.action.op : *span.action.paired);
  });
  return found == spans.end() ? "" : to_string(found->action);
}

// The phases of a step's pairs as they ran, in milliseconds from the step's start: where a miss comes from.
nlohmann::json phases_of(const StepResult& result, const PairProgram& program) {
  nlohmann::json phases = nlohmann::json::array();
  for (const PhaseSpan& phase : result.statistics.phases) {
    const bool of_program = phase.phase < static_cast<int>(program.forward.size());  // The loss is a phase of its own.
    const std::string pair = pair_of(phase, result.statistics.spans);
    if (!of_program || pair.empty()) continue;
    phases.push_back({{"pair", pair},
                      {"name", name_of(program, phase.part, phase.phase)},
                      {"start_ms", 1e3 * phase.start},
                      {"end_ms", 1e3 * phase.end},
                      {"waited_ms", 1e3 * phase.waited}});
  }
  return phases;
}

nlohmann::json measure_ratio(const Settings& settings, double ratio, ExpertGroup& experts, Sleeper& sleeper,
                             Ranks& ranks) {
  const StageCosts costs = costs_of(settings, ratio, experts, ranks);
  const Phases phases = phase_specs(costs);
  const Kind kinds[] = {{"sequence", false, in_sequence(phases, phases)}, {"merged", true, merge(phases, phases)}};
  nlohmann::json result = describe(costs, ratio);
  std::vector<BenchPipeline> pipelines;
  for (const Kind& kind : kinds) {
    pipelines.emplace_back("dualpipev", make_loopback(1)[0], costs, kind.phased, kMicrobatches, experts, sleeper);
    result[kind.name] = {{"ideal_ms", ideal_ms(kind.program, kind.phased)}, {"samples_ms", nlohmann::json::array()}};
  }
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      ranks.barrier();
      const StepResult step = pipelines[i].step();
      add_pairs(step, result[kinds[i].name]["samples_ms"]);
      result[kinds[i].name]["statistics"] = step.statistics.overlap_summary();
      if (kinds[i].phased) result["last_step"] = phases_of(step, kinds[i].program);
    }
  }
  result["program"] = print(kinds[1].program);
  return result;
}

}  // namespace

nlohmann::json measure_pair(const Settings& settings, Ranks& ranks) {
  ExpertGroup experts = ranks.make_experts();
  Sleeper sleeper = sleeper_of(settings);
  nlohmann::json cases = nlohmann::json::array();
  for (double ratio : settings.ratios) {
    cases.push_back(measure_ratio(settings, ratio, experts, sleeper, ranks));
  }
  return {{"cases", cases}, {"overshoot", describe(sleeper.overshoot)}};
}

}  // namespace dualpipe::bench
