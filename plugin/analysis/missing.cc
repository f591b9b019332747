#include <algorithm>
#include <string>

#include "plugin/analysis/cells.h"
#include "plugin/schedule/text.h"

namespace dualpipe::analysis {
namespace {

using Rule = Violation::Rule;

constexpr Kind kCommunication[] = {Kind::kSendForward,  Kind::kRecvForward,     Kind::kSendBackward,
                                   Kind::kRecvBackward, Kind::kWaitSendForward, Kind::kWaitSendBackward};

void add_missing(const CellRules& rules, const Op& op, Findings& findings) {
  findings.add(Rule::kMissing, rules.placement.rank_of(op.stage, op.micro_batch), -1,
               to_string(op) + " stands nowhere");
}

// Which of F, B, I and W is missing; B stands for both halves.
void check_compute(const CellRules& rules, int stage, int micro_batch, std::uint16_t seen, Findings& findings) {
  const auto has = [&](Kind kind) { return (seen & kind_bit(kind)) != 0; };
  const auto add = [&](Kind kind) { add_missing(rules, make_op(stage, kind, micro_batch), findings); };
  if (!has(Kind::kForward)) {
    add(Kind::kForward);
  }
  if (has(Kind::kBackward)) {
    return;
  }
  if (!has(Kind::kBackwardInput)) {
    add(has(Kind::kBackwardWeight) ? Kind::kBackwardInput : Kind::kBackward);
  } else if (!has(Kind::kBackwardWeight) && !rules.may_lack_weight) {
    add(Kind::kBackwardWeight);
  }
}

void check_communication(const CellRules& rules, int stage, int micro_batch, std::uint16_t seen, Findings& findings) {
  for (const Kind kind : kCommunication) {
    const Op op = make_op(stage, kind, micro_batch);
    if ((seen & kind_bit(kind)) == 0 && rules.messages.moved_by(op)) {
      add_missing(rules, op, findings);
    }
  }
}

bool mentions(const Row& row, int stage) {
  return std::any_of(row.begin(), row.end(), [&](const Action& action) { return action.op.stage == stage; });
}

// Where anything is reduced, everything is, but for the stages whose closing W the optimizer step runs.
void check_reductions(const CellRules& rules, const SeenCells& seen, const std::vector<Row>& deferred,
                      Findings& findings) {
  const bool reduces = std::any_of(seen.reduced_on.begin(), seen.reduced_on.end(),
                                   [](const std::vector<int>& ranks) { return !ranks.empty(); });
  for (int stage = 0; reduces && stage < rules.placement.stages(); ++stage) {
    for (const int rank : rules.placement.ranks_of(stage)) {
      const std::vector<int>& ranks = seen.reduced_on[stage];
      const bool is_deferred = !deferred.empty() && mentions(deferred.at(rank), stage);
      if (!is_deferred && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
        findings.add(Rule::kMissing, rank, -1,
                     to_string(make_op(stage, Kind::kReduceGrad)) + " stands nowhere on rank " + std::to_string(rank));
      }
    }
  }
}

}  // namespace

void check_missing(const CellRules& rules, const SeenCells& seen, const std::vector<Row>& deferred,
                   Findings& findings) {
  for (int stage = 0; stage < rules.placement.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < rules.num_microbatches && !findings.full(); ++micro_batch) {
      const std::uint16_t kinds = seen.kinds.at(stage, micro_batch);
      check_compute(rules, stage, micro_batch, kinds, findings);
      if (rules.lowered) {
        check_communication(rules, stage, micro_batch, kinds, findings);
      }
    }
  }
  if (rules.lowered) {
    check_reductions(rules, seen, deferred, findings);
  }
}

}  // namespace dualpipe::analysis
