#include "tests/stress/explorer/ledger.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace dualpipe::stress {
namespace {

// Where an operation stands in its rank's row; both halves of a pair stand at the same place.
using Places = std::map<Op, int>;

// One rank's operations. Broken as soon as a cell cannot be read or stands twice.
struct Page {
  Places places;
  std::set<int> reduced;  // Stages with a REDUCE_GRAD.
  bool broken = false;
};

struct Book {
  const Placement& placement;
  int num_microbatches;
  bool lowered;
};

bool is_pair(const Action& action) {
  return action.op.kind == Kind::kForward && action.paired->kind == Kind::kBackward;
}

bool holds_stage(const Placement& placement, int rank, int stage) {
  const std::vector<int> ranks = placement.ranks_of(stage);
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void enter(const Book& book, int rank, const Op& op, int place, Page& page) {
  const bool may_stand = book.lowered || is_compute(op.kind);
  if (!may_stand || op.stage >= book.placement.stages() || op.micro_batch < 0) {
    page.broken = true;
  } else if (!has_micro_batch(op.kind)) {
    page.broken = page.broken || !holds_stage(book.placement, rank, op.stage);
    if (op.kind == Kind::kReduceGrad) {
      page.broken = page.broken || !page.reduced.insert(op.stage).second;
      page.places.emplace(make_op(op.stage, op.kind), place);
    }
  } else if (op.micro_batch >= book.num_microbatches || book.placement.rank_of(op.stage, op.micro_batch) != rank) {
    page.broken = true;
  } else {
    page.broken = page.broken || !page.places.emplace(op, place).second;
  }
}

Page read_row(const Book& book, int rank, const Row& row) {
  Page page;
  for (std::size_t place = 0; place < row.size(); ++place) {
    page.broken = page.broken || (row[place].paired && !is_pair(row[place]));
    enter(book, rank, row[place].op, static_cast<int>(place), page);
    if (row[place].paired) {
      enter(book, rank, *row[place].paired, static_cast<int>(place), page);
    }
  }
  return page;
}

std::optional<int> place_of(const Places& places, int stage, Kind kind, int micro_batch) {
  const auto found = places.find(make_op(stage, kind, micro_batch));
  return found == places.end() ? std::nullopt : std::optional(found->second);
}

// What stands for one (stage, micro-batch) on its rank.
class Entry {
 public:
  Entry(const Book& book, const Page& page, int rank, int stage, int micro_batch)
      : book_(book), page_(page), rank_(rank), stage_(stage), micro_batch_(micro_batch) {}

  bool holds() const {
    const std::optional<int> forward = at(Kind::kForward);
    return forward && computes_hold(*forward) && (!book_.lowered || (traffic_holds(*forward) && reduction_holds())) &&
           producers_hold(*forward);
  }

 private:
  std::optional<int> at(Kind kind) const { return place_of(page_.places, stage_, kind, micro_batch_); }
  std::optional<int> gradient() const { return at(Kind::kBackward) ? at(Kind::kBackward) : at(Kind::kBackwardInput); }

  // B alone, or I and then W; all behind F.
  bool computes_hold(int forward) const {
    const auto whole = at(Kind::kBackward), input = at(Kind::kBackwardInput), weight = at(Kind::kBackwardWeight);
    if (whole) {
      return !input && !weight && forward < *whole;
    }
    return input && weight && forward < *input && *input < *weight;
  }

  bool crosses(int from, int to) const {
    return from >= 0 && to >= 0 && from < book_.placement.stages() && to < book_.placement.stages() &&
           book_.placement.rank_of(from, micro_batch_) != book_.placement.rank_of(to, micro_batch_);
  }

  // Stands where `due`, behind `earlier`, and nowhere else.
  bool stands(Kind kind, bool due, int earlier) const {
    const std::optional<int> place = at(kind);
    return place.has_value() == due && (!due || earlier < *place);
  }

  bool traffic_holds(int forward) const {
    const bool sends_on = crosses(stage_, stage_ + 1);
    const bool sends_back = crosses(stage_, stage_ - 1);
    return stands(Kind::kRecvForward, sends_back, -1) && stands(Kind::kSendForward, sends_on, forward) &&
           stands(Kind::kWaitSendForward, sends_on, at(Kind::kSendForward).value_or(-1)) &&
           stands(Kind::kRecvBackward, sends_on, forward) && stands(Kind::kSendBackward, sends_back, *gradient()) &&
           stands(Kind::kWaitSendBackward, sends_back, at(Kind::kSendBackward).value_or(-1));
  }

  bool reduction_holds() const {
    const std::optional<int> reduced = place_of(page_.places, stage_, Kind::kReduceGrad, 0);
    const std::optional<int> last = at(Kind::kBackward) ? at(Kind::kBackward) : at(Kind::kBackwardWeight);
    return !reduced || *last < *reduced;
  }

  // What the rank hands to itself.
  bool producers_hold(int forward) const {
    const bool from_here = stage_ > 0 && book_.placement.rank_of(stage_ - 1, micro_batch_) == rank_;
    const bool back_from_here =
        stage_ + 1 < book_.placement.stages() && book_.placement.rank_of(stage_ + 1, micro_batch_) == rank_;
    return (!from_here || neighbour(stage_ - 1).comes_before(Kind::kForward, forward)) &&
           (!back_from_here || neighbour(stage_ + 1).comes_before(Kind::kBackward, *gradient()));
  }

  Entry neighbour(int stage) const { return Entry(book_, page_, rank_, stage, micro_batch_); }

  bool comes_before(Kind kind, int place) const {
    const std::optional<int> mine = kind == Kind::kForward ? at(kind) : gradient();
    return mine && *mine < place;
  }

  const Book& book_;
  const Page& page_;
  int rank_;
  int stage_;
  int micro_batch_;
};

bool all_hold(const Book& book, const std::vector<Page>& pages) {
  for (int stage = 0; stage < book.placement.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < book.num_microbatches; ++micro_batch) {
      const int rank = book.placement.rank_of(stage, micro_batch);
      if (!Entry(book, pages[rank], rank, stage, micro_batch).holds()) {
        return false;
      }
    }
  }
  return true;
}

// A page per rank; nothing where a cell is out of range, on the wrong rank, no pair, or a repeat.
std::optional<std::vector<Page>> read_rows(const Book& book, const std::vector<Row>& rows) {
  if (static_cast<int>(rows.size()) != book.placement.ranks()) {
    return std::nullopt;
  }
  std::vector<Page> pages;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    pages.push_back(read_row(book, static_cast<int>(rank), rows[rank]));
    if (pages.back().broken) {
      return std::nullopt;
    }
  }
  return pages;
}

bool mentions(const Row& row, int stage) {
  return std::any_of(row.begin(), row.end(), [&](const Action& action) { return action.op.stage == stage; });
}

// All stages are reduced on all their ranks or none is; those whose W are deferred may be left to the optimizer step.
bool reductions_hold(const Program& program, const std::vector<Page>& pages, bool defers) {
  const bool any = std::any_of(pages.begin(), pages.end(), [](const Page& page) { return !page.reduced.empty(); });
  for (int stage = 0; any && stage < program.placement.stages(); ++stage) {
    for (const int rank : program.placement.ranks_of(stage)) {
      const bool deferred =
          defers && !program.deferred_weight.empty() && mentions(program.deferred_weight[rank], stage);
      if (!deferred && !pages[rank].reduced.contains(stage)) {
        return false;
      }
    }
  }
  return true;
}

std::vector<Row> with_deferred(const Program& program) {
  std::vector<Row> rows = program.rows;
  for (std::size_t rank = 0; rank < rows.size() && rank < program.deferred_weight.size(); ++rank) {
    const Row& tail = program.deferred_weight[rank];
    rows[rank].insert(rows[rank].end(), tail.begin(), tail.end());
  }
  return rows;
}

std::vector<int> reductions_of(const Row& row) {
  std::vector<int> stages;
  for (const Action& action : row) {
    if (action.op.kind == Kind::kReduceGrad) {
      stages.push_back(action.op.stage);
    }
  }
  return stages;
}

}  // namespace

bool cells_hold(const Schedule& schedule) {
  const Book book{schedule.placement, schedule.num_microbatches, false};
  const auto pages = read_rows(book, schedule.rows);
  return pages && all_hold(book, *pages);
}

bool cells_hold(const Program& program, bool defers) {
  const Book book{program.placement, program.num_microbatches, true};
  const auto pages = read_rows(book, defers ? with_deferred(program) : program.rows);
  return pages && all_hold(book, *pages) && reductions_hold(program, *pages, defers);
}

bool mirrors_agree(const Program& program) {
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    const std::optional<int> mirror = program.placement.mirror_of(static_cast<int>(rank));
    if (mirror && reductions_of(program.rows[rank]) != reductions_of(program.rows[*mirror])) {
      return false;
    }
  }
  return true;
}

}  // namespace dualpipe::stress
