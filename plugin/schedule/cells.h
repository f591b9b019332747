// plugin/schedule/cells.h
//
// Cells of the text form together with where they stand, so that a refusal can say so.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "plugin/schedule/action.h"

namespace dualpipe {

// Where a cell stands: the file or text, its line and its place in the line, counted from 0 with empty cells included.
struct CellPlace {
  std::string_view origin;
  std::optional<int> rank;
  std::optional<int> column;
};

struct Cell {
  Action action;
  int column;
};

// The cells of one line, empty ones left out. Throws ScheduleError as refuse_cell() does.
std::vector<Cell> parse_cells(std::string_view line, CellPlace place);

// Throws ScheduleError: `[origin] rank 2, column 3: rule, got "cell"`.
[[noreturn]] void refuse_cell(std::string_view cell, const CellPlace& place, std::string_view rule);

}  // namespace dualpipe
