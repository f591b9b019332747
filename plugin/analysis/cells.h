// plugin/analysis/cells.h
//
// check_cells() and check_missing(): the part of validate() that looks at one rank's row at a time. Every action that
// must stand stands once, on its rank, in an order that its own rank can keep. What ranks do to each other is the
// matter of explore.h.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/analysis/findings.h"
#include "plugin/analysis/messages.h"
#include "plugin/analysis/stage_table.h"

namespace dualpipe::analysis {

// What the rows are held against.
struct CellRules {
  const Placement& placement;
  const Messages& messages;
  int num_microbatches = 0;
  bool lowered = false;          // Rows carry communication, which is checked as well.
  bool may_lack_weight = false;  // A W that stands nowhere is left to the optimizer step.
};

constexpr std::uint16_t kind_bit(Kind kind) { return static_cast<std::uint16_t>(1u << static_cast<int>(kind)); }

// What stands somewhere in the rows, on its rank.
struct SeenCells {
  explicit SeenCells(const CellRules& rules)
      : kinds(rules.placement.stages(), rules.num_microbatches, 0), reduced_on(rules.placement.stages()) {}

  StageTable<std::uint16_t> kinds;           // Bits kind_bit(kind).
  std::vector<std::vector<int>> reduced_on;  // Per stage, the ranks with its REDUCE_GRAD.
};

// False, with a violation, unless there is a row per rank.
bool check_row_count(const std::vector<Row>& rows, const Placement& placement, Findings& findings);
// Checks the cells of a row from left to right and notes them in `seen`. `column` of a violation is the cell's index.
void check_cells(int rank, const Row& row, const CellRules& rules, SeenCells& seen, Findings& findings);
// A row of W that the optimizer step runs after the others; violations have no column.
void check_deferred(int rank, const Row& row, const CellRules& rules, SeenCells& seen, Findings& findings);
// After all rows: what stands nowhere. `deferred` holds a row per rank, or is empty.
void check_missing(const CellRules& rules, const SeenCells& seen, const std::vector<Row>& deferred, Findings& findings);

}  // namespace dualpipe::analysis
