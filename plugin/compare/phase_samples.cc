#include "plugin/compare/phase_samples.h"

#include <set>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe::compare {
namespace {

struct NamedPhase {
  Op op;
  std::string phase;
};

NamedPhase parse_name(const std::string& name, int stages) {
  const std::size_t space = name.find(' ');
  const Op op = parse_action(name.substr(0, space)).op;
  if (space == std::string::npos || !is_compute(op.kind) || op.stage >= stages)
    throw ScheduleError("phases", "a phase must be called by an action of a stage below " + std::to_string(stages) +
                                      " and its own name, as in '0F3 0.attention', got '" + name + "'");
  return {op, name.substr(space + 1)};
}

// The forwards and backwards of a step that ran in pairs, as F and B.
std::set<Op> paired_ops(const RecordedStep& step) {
  std::set<Op> ops;
  for (const Span& span : step.spans) {
    if (!span.action.paired) continue;
    ops.insert(span.action.op);
    ops.insert(*span.action.paired);
  }
  return ops;
}

// Phases of a B are called I and W where they ran one by one.
bool was_paired(const std::set<Op>& paired, const Op& op) {
  const Kind kind = op.kind == Kind::kForward ? Kind::kForward : Kind::kBackward;
  return paired.contains(make_op(op.stage, kind, op.micro_batch));
}

std::vector<double>& values_of(PhaseSamples& samples, Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return samples.forward;
    case Kind::kBackwardInput:
      return samples.backward_input;
    case Kind::kBackwardWeight:
      return samples.backward_weight;
    default:
      return samples.backward;
  }
}

void add(StagePhases& phases, const NamedPhase& name, const PhaseRecord& record, bool in_pair) {
  const auto [found, is_new] = phases.try_emplace(name.phase);
  PhaseSamples& samples = found->second;
  if (is_new) samples.order = static_cast<int>(phases.size());
  samples.is_exchange = record.waited.has_value();
  if (!record.waited || !in_pair) values_of(samples, name.op.kind).push_back(record.end - record.start);
  if (!record.waited) return;
  (name.op.kind == Kind::kForward ? samples.waited_forward : samples.waited_backward).push_back(*record.waited);
}

}  // namespace

std::vector<StagePhases> sample_phases(const RunFiles& run) {
  std::vector<StagePhases> stages(run.ranks.empty() ? 0 : run.ranks.front().num_stages);
  for (const RankTimeline& rank : run.ranks) {
    for (const RecordedStep& step : rank.steps) {
      const std::set<Op> paired = paired_ops(step);
      for (const PhaseRecord& record : step.phases) {
        const NamedPhase name = parse_name(record.name, rank.num_stages);
        add(stages[name.op.stage], name, record, was_paired(paired, name.op));
      }
    }
  }
  return stages;
}

}  // namespace dualpipe::compare
