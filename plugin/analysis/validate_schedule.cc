#include <string>

#include "plugin/analysis/cells.h"
#include "plugin/analysis/progress.h"
#include "plugin/analysis/validate.h"
#include "plugin/analysis/waiting.h"
#include "plugin/schedule/text.h"

namespace dualpipe {

using namespace analysis;

namespace {

using Rule = Violation::Rule;

void check_progress(const Schedule& schedule, Findings& findings) {
  Progress progress(schedule);
  progress.run([](int, const Action&) {});
  if (progress.finished()) {
    return;
  }
  std::vector<std::optional<Wait>> waits(schedule.rows.size());
  for (std::size_t i = 0; i < schedule.rows.size(); ++i) {
    const int rank = static_cast<int>(i);
    const int column = progress.reached(rank);
    if (column == static_cast<int>(schedule.rows[i].size())) {
      continue;
    }
    const Op missing = progress.missing(rank);
    const int peer = schedule.placement.rank_of(missing.stage, missing.micro_batch);
    waits[i] = Wait{rank, column, peer,
                    "rank " + std::to_string(rank) + " waits at " + to_string(schedule.rows[i][column]) + " for " +
                        to_string(missing) + " of rank " + std::to_string(peer)};
  }
  add_deadlock(Rule::kDeadlock, waits, findings);
}

}  // namespace

std::vector<Violation> validate(const Schedule& schedule, const ValidateOptions& options) {
  Findings findings(options.max_violations);
  const Messages messages(schedule.placement, schedule.num_microbatches);
  const CellRules rules{schedule.placement, messages, schedule.num_microbatches, false,
                        options.defer_tail_weight_gradients};
  if (!check_row_count(schedule.rows, schedule.placement, findings)) {
    return findings.take();
  }
  {
    SeenCells seen(rules);
    for (std::size_t rank = 0; rank < schedule.rows.size() && !findings.full(); ++rank) {
      check_cells(static_cast<int>(rank), schedule.rows[rank], rules, seen, findings);
    }
    check_missing(rules, seen, {}, findings);
  }
  if (findings.empty()) {
    check_progress(schedule, findings);
  }
  return findings.take();
}

std::string to_string(Violation::Rule rule) {
  switch (rule) {
    case Rule::kMissing:
      return "missing";
    case Rule::kRepeated:
      return "repeated";
    case Rule::kOrder:
      return "order";
    case Rule::kWrongRank:
      return "wrong rank";
    case Rule::kOutOfRange:
      return "out of range";
    case Rule::kDeadlock:
      return "deadlock";
    case Rule::kSlots:
      return "slots";
    case Rule::kEdgeOrder:
      return "edge order";
    case Rule::kReductionOrder:
      return "reduction order";
  }
  return "";
}

}  // namespace dualpipe
