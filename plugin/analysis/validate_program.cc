#include <string>

#include "plugin/analysis/cells.h"
#include "plugin/analysis/explore.h"
#include "plugin/analysis/validate.h"
#include "plugin/analysis/waiting.h"
#include "plugin/schedule/text.h"

namespace dualpipe {

using namespace analysis;

namespace {

using Rule = Violation::Rule;

void check_all_cells(const Program& program, const Messages& messages, const ValidateOptions& options,
                     Findings& findings) {
  const bool defers = options.defer_tail_weight_gradients;
  const CellRules rules{program.placement, messages, program.num_microbatches, true, false};
  SeenCells seen(rules);
  for (std::size_t rank = 0; rank < program.rows.size() && !findings.full(); ++rank) {
    check_cells(static_cast<int>(rank), program.rows[rank], rules, seen, findings);
  }
  for (std::size_t rank = 0; defers && rank < program.deferred_weight.size(); ++rank) {
    check_deferred(static_cast<int>(rank), program.deferred_weight[rank], rules, seen, findings);
  }
  check_missing(rules, seen, defers ? program.deferred_weight : std::vector<Row>{}, findings);
}

// Each message's place among the messages of its edge, in the order in which they are sent.
std::vector<std::int32_t> places_in_edge(const Program& program, const Messages& messages) {
  std::vector<std::int32_t> place(messages.count(), 0);
  std::vector<std::int32_t> sent(messages.edges().size(), 0);
  for (const Row& row : program.rows) {
    for (const Action& action : row) {
      if (is_send(action.op.kind)) {
        const MessageId message = messages.moved_by(action.op).value();
        place[message.id] = sent[message.edge]++;
      }
    }
  }
  return place;
}

std::string name(const Edge& edge) { return std::to_string(edge.from) + ">" + std::to_string(edge.to); }

// True if every edge posts its receives in the order in which its messages are sent.
bool check_edge_order(const Program& program, const Messages& messages, const std::vector<std::int32_t>& place,
                      Findings& findings) {
  bool holds = true;
  std::vector<std::int32_t> posted(messages.edges().size(), 0);
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (std::size_t column = 0; column < program.rows[rank].size(); ++column) {
      const Op& op = program.rows[rank][column].op;
      if (!is_recv(op.kind)) {
        continue;
      }
      const MessageId message = messages.moved_by(op).value();
      const std::int32_t expected = posted[message.edge]++;
      if (place[message.id] != expected) {
        holds = false;
        findings.add(Rule::kEdgeOrder, static_cast<int>(rank), static_cast<int>(column),
                     to_string(op) + " is receive number " + std::to_string(expected) + " of edge " +
                         name(messages.edges()[message.edge]) + ", but its message is sent as number " +
                         std::to_string(place[message.id]));
      }
    }
  }
  return holds;
}

// What holds the rank up, and the rank that would have to move first.
template <class Channels>
Wait describe(const Program& program, const Messages& messages, const Exploration<Channels>& run, int rank) {
  const int column = run.reached(rank);
  const Action& action = program.rows[rank][column];
  const MessageId message = run.awaited(rank);
  const Edge& edge = messages.edges()[message.edge];
  const std::string at = "rank " + std::to_string(rank) + " waits at " + to_string(action) + " for ";
  if (!run.channels().is_sent(message)) {
    return {rank, column, edge.from, at + "its message from rank " + std::to_string(edge.from)};
  }
  if (!run.channels().is_posted(message)) {
    const std::string whose = edge.to == rank ? "its own row" : "rank " + std::to_string(edge.to);
    return {rank, column, edge.to, at + "a receive that " + whose + " posts later"};
  }
  return {rank, column, edge.to,
          at + "a slot of edge " + name(edge) + ": each of its " + std::to_string(program.slots) +
              " holds a message that rank " + std::to_string(edge.to) + " consumes later"};
}

template <class Channels>
bool explore(const Program& program, const Messages& messages, Channels channels, Rule rule, Findings& findings) {
  Exploration<Channels> run(program, messages, std::move(channels));
  if (run.run()) {
    return true;
  }
  std::vector<std::optional<Wait>> waits(program.rows.size());
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    if (run.reached(static_cast<int>(rank)) < static_cast<int>(program.rows[rank].size())) {
      waits[rank] = describe(program, messages, run, static_cast<int>(rank));
    }
  }
  add_deadlock(rule, waits, findings);
  return false;
}

// What moves in order into slots moves under tagged rendezvous as well, so the second run is needed only to tell a lack
// of slots from a deadlock of the rows themselves.
void check_deadlock(const Program& program, const Messages& messages, Findings& findings) {
  const std::vector<std::int32_t> place = places_in_edge(program, messages);
  if (!check_edge_order(program, messages, place, findings)) {
    explore(program, messages, Tagged(messages), Rule::kDeadlock, findings);
    return;
  }
  Findings in_order(1);
  if (explore(program, messages, InOrder(messages, place, program.slots), Rule::kSlots, in_order)) {
    return;
  }
  if (explore(program, messages, Tagged(messages), Rule::kDeadlock, findings)) {
    for (Violation& violation : in_order.take()) {
      findings.add(violation.rule, violation.rank, violation.column, std::move(violation.message));
    }
  }
}

std::vector<int> reductions(const Row& row) {
  std::vector<int> stages;
  for (const Action& action : row) {
    if (action.op.kind == Kind::kReduceGrad) {
      stages.push_back(action.op.stage);
    }
  }
  return stages;
}

std::string list(const std::vector<int>& stages) {
  std::string text;
  for (const int stage : stages) {
    text += (text.empty() ? "" : ", ") + to_string(make_op(stage, Kind::kReduceGrad));
  }
  return text.empty() ? "nothing" : text;
}

void check_reduction_order(const Program& program, Findings& findings) {
  for (int rank = 0; rank < program.placement.ranks(); ++rank) {
    const std::optional<int> mirror = program.placement.mirror_of(rank);
    if (!mirror || *mirror < rank) {
      continue;
    }
    const std::vector<int> mine = reductions(program.rows[rank]);
    const std::vector<int> theirs = reductions(program.rows[*mirror]);
    if (mine != theirs) {
      findings.add(Rule::kReductionOrder, *mirror, -1,
                   "rank " + std::to_string(rank) + " reduces " + list(mine) + "; its mirror, rank " +
                       std::to_string(*mirror) + ", reduces " + list(theirs));
    }
  }
}

}  // namespace

std::vector<Violation> validate(const Program& program, const ValidateOptions& options) {
  Findings findings(options.max_violations);
  if (!check_row_count(program.rows, program.placement, findings)) {
    return findings.take();
  }
  const Messages messages(program.placement, program.num_microbatches);
  check_all_cells(program, messages, options, findings);
  check_reduction_order(program, findings);
  if (findings.empty()) {
    check_deadlock(program, messages, findings);
  }
  return findings.take();
}

}  // namespace dualpipe
