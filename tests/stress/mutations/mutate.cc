#include "tests/stress/mutations/mutate.h"

#include <algorithm>
#include <utility>

namespace dualpipe::stress {

std::size_t Mutator::below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

// Half of them neighbours, or near ones: those are the changes that may still be sound.
void Mutator::swap_cells(Row& row) {
  const std::size_t cell = below(row.size());
  const std::size_t reach = below(4) == 0 ? row.size() : std::min<std::size_t>(row.size(), 4);
  std::swap(row[cell], row[std::min(row.size() - 1, cell + 1 + below(reach))]);
}

void Mutator::retarget(Action& action, int stages, int num_microbatches) {
  Op& op = action.paired && below(2) == 0 ? *action.paired : action.op;
  switch (below(3)) {
    case 0:
      op.stage = static_cast<std::uint16_t>(below(stages + 1));
      break;
    case 1:
      op.micro_batch = has_micro_batch(op.kind) ? static_cast<std::int32_t>(below(num_microbatches + 1)) : 0;
      break;
    default:
      op.kind = static_cast<Kind>(below(static_cast<std::size_t>(Kind::kReduceGrad)));
  }
}

void Mutator::move_to_other(std::vector<Row>& rows, std::size_t from) {
  Row& to = rows[below(rows.size())];
  const Action cell = rows[from][below(rows[from].size())];
  to.insert(to.begin() + static_cast<std::ptrdiff_t>(below(to.size() + 1)), cell);
}

void Mutator::change(std::vector<Row>& rows, int stages, int num_microbatches) {
  const std::size_t rank = below(rows.size());
  Row& row = rows[rank];
  if (row.empty()) {
    return;
  }
  const std::size_t cell = below(row.size());
  switch (below(16)) {
    case 0:
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(cell));
      break;
    case 1:
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(below(row.size() + 1)), Action(row[cell]));
      break;
    case 2:
      retarget(row[cell], stages, num_microbatches);
      break;
    case 3:
      move_to_other(rows, rank);
      break;
    case 4:  // Later by any distance.
      std::rotate(row.begin() + static_cast<std::ptrdiff_t>(cell), row.begin() + static_cast<std::ptrdiff_t>(cell) + 1,
                  row.begin() + static_cast<std::ptrdiff_t>(cell + 1 + below(row.size() - cell)));
      break;
    default:
      swap_cells(row);
  }
}

}  // namespace dualpipe::stress
