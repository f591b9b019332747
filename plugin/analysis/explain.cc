#include <algorithm>
#include <string>

#include "plugin/analysis/validate.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr int kRanksAround = 3;
constexpr int kColumnsAround = 5;
constexpr int kFewRanks = 8;
constexpr const char* kMark = "\033[1;97;41m";
constexpr const char* kReset = "\033[0m";

// The cells shown: half-open ranges of ranks and columns.
struct Window {
  int first_rank = 0;
  int last_rank = 0;
  int first_column = 0;
  int last_column = 0;
};

int longest_row(const std::vector<Row>& rows) {
  std::size_t length = 0;
  for (const Row& row : rows) {
    length = std::max(length, row.size());
  }
  return static_cast<int>(length);
}

Window window_around(const std::vector<Row>& rows, int rank, int column) {
  const int ranks = static_cast<int>(rows.size());
  const int columns = longest_row(rows);
  Window window{0, ranks, 0, std::min(columns, 2 * kColumnsAround + 1)};
  if (ranks > kFewRanks) {
    window.first_rank = std::clamp(rank - kRanksAround, 0, ranks);
    window.last_rank = std::min(ranks, std::max(rank, 0) + kRanksAround + 1);
  }
  if (column >= 0) {
    window.first_column = std::max(0, column - kColumnsAround);
    window.last_column = std::min(columns, column + kColumnsAround + 1);
  }
  return window;
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string label(const std::vector<Row>& rows, int rank) {
  return "rank " + padded(std::to_string(rank), std::to_string(rows.size() - 1).size());
}

std::string cell(const std::vector<Row>& rows, int rank, int column) {
  const Row& row = rows[rank];
  return column < static_cast<int>(row.size()) ? to_string(row[column].op) + (row[column].paired ? "+" : "") +
                                                     (row[column].paired ? to_string(*row[column].paired) : "")
                                               : "";
}

std::string draw_row(const std::vector<Row>& rows, const Window& window, const std::vector<std::size_t>& widths,
                     int rank, const Violation& violation, bool colour) {
  std::string line = label(rows, rank) + (window.first_column > 0 ? "  .." : "    ");
  for (int column = window.first_column; column < window.last_column; ++column) {
    const std::string text = cell(rows, rank, column);
    const bool marked = rank == violation.rank && column == violation.column;
    const std::size_t width = widths[column - window.first_column];
    const std::string shown = marked ? ">" + text + "<" : " " + text + " ";
    line += marked && colour ? kMark + shown + kReset + padded("", width - text.size()) : padded(shown, width + 2);
  }
  const bool is_cut = static_cast<int>(rows[rank].size()) > window.last_column;
  line += is_cut ? " .." : "";
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::vector<std::size_t> column_widths(const std::vector<Row>& rows, const Window& window) {
  std::vector<std::size_t> widths;
  for (int column = window.first_column; column < window.last_column; ++column) {
    std::size_t width = std::to_string(column).size();
    for (int rank = window.first_rank; rank < window.last_rank; ++rank) {
      width = std::max(width, cell(rows, rank, column).size());
    }
    widths.push_back(width);
  }
  return widths;
}

std::string draw_head(const std::vector<Row>& rows, const Window& window, const std::vector<std::size_t>& widths) {
  std::string line = padded("column", label(rows, 0).size()) + "    ";
  for (int column = window.first_column; column < window.last_column; ++column) {
    line += " " + padded(std::to_string(column), widths[column - window.first_column]) + " ";
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string headline(const Violation& violation) {
  std::string line = to_string(violation.rule);
  if (violation.rank >= 0) {
    line += " at rank " + std::to_string(violation.rank);
  }
  if (violation.column >= 0) {
    line += ", column " + std::to_string(violation.column);
  }
  return line + ": " + violation.message + "\n";
}

std::string explain_rows(const std::vector<Row>& rows, const Violation& violation, bool colour) {
  const Window window = window_around(rows, violation.rank, violation.column);
  const std::vector<std::size_t> widths = column_widths(rows, window);
  std::string text = headline(violation) + "\n" + draw_head(rows, window, widths);
  for (int rank = window.first_rank; rank < window.last_rank; ++rank) {
    text += draw_row(rows, window, widths, rank, violation, colour);
  }
  return text;
}

}  // namespace

std::string explain(const Schedule& schedule, const Violation& violation, bool colour) {
  return explain_rows(schedule.rows, violation, colour);
}

std::string explain(const Program& program, const Violation& violation, bool colour) {
  return explain_rows(program.rows, violation, colour);
}

}  // namespace dualpipe
