#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "plugin/schedule/cells.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/infer_placement.h"
#include "plugin/schedule/text.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// Lines without their ends, blank ones at the end of the file left out.
std::vector<std::string_view> split_lines(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  while (!lines.empty() && is_blank(lines.back())) {
    lines.pop_back();
  }
  return lines;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open() || std::filesystem::is_directory(path)) {
    throw ScheduleError(path, "a schedule must be a file that can be read, got none");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_communication(const Cell& cell) { return !is_compute(cell.action.op.kind); }

using CellRows = std::vector<std::vector<Cell>>;

CellRows compute_cells(std::string_view csv, const std::string& origin) {
  CellRows rows;
  for (const std::string_view line : split_lines(csv)) {
    std::vector<Cell> cells = parse_cells(line, CellPlace{origin, static_cast<int>(rows.size()), std::nullopt});
    std::erase_if(cells, is_communication);
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::size_t count_cells(const CellRows& rows) {
  std::size_t count = 0;
  for (const std::vector<Cell>& row : rows) {
    count += row.size();
  }
  return count;
}

// Far more than any file that lacks some of its actions, and no more than what a table over all of them may cost.
constexpr std::size_t kMostPerAction = 16;

void require_filled(int stages, int num_microbatches, std::size_t actions, const std::string& origin) {
  const std::size_t wanted = static_cast<std::size_t>(stages) * static_cast<std::size_t>(num_microbatches);
  if (wanted > kMostPerAction * actions) {
    throw ScheduleError(origin, std::to_string(stages) + " stages and " + std::to_string(num_microbatches) +
                                    " micro-batches must have an F each = " + std::to_string(wanted) + ", got " +
                                    std::to_string(actions) + " actions in all");
  }
}

// Every stage has an F for every micro-batch, so no number can be as large as the number of actions: a slip of the pen
// must not become a schedule of two billion micro-batches.
int count_microbatches(const CellRows& rows, const std::string& origin) {
  const int actions = static_cast<int>(count_cells(rows));
  int count = 0;
  int stages = 0;
  for (int rank = 0; rank < static_cast<int>(rows.size()); ++rank) {
    for (const Cell& cell : rows[rank]) {
      for_each_op(cell.action, [&](const Op& op) {
        if (op.micro_batch >= actions || op.stage >= actions) {
          refuse_cell(
              to_string(cell.action), CellPlace{origin, rank, cell.column},
              "stages and micro-batches must be below the file's number of actions = " + std::to_string(actions));
        }
        count = std::max(count, op.micro_batch + 1);
        stages = std::max(stages, op.stage + 1);
      });
    }
  }
  require_filled(stages, count, static_cast<std::size_t>(actions), origin);
  return count;
}

}  // namespace

Schedule parse_schedule(std::string_view csv, std::string name) {
  const CellRows cells = compute_cells(csv, name);
  const int num_microbatches = count_microbatches(cells, name);
  if (num_microbatches == 0) {
    throw ScheduleError(name, "a schedule must hold compute actions, one line per rank, got none");
  }
  std::vector<Row> rows;
  for (const std::vector<Cell>& line : cells) {
    Row& row = rows.emplace_back();
    row.reserve(line.size());
    std::transform(line.begin(), line.end(), std::back_inserter(row), [](const Cell& cell) { return cell.action; });
  }
  Placement placement = infer_placement(rows, num_microbatches, name);
  return Schedule{std::move(name), std::move(placement), num_microbatches, std::move(rows)};
}

std::size_t count_communication_cells(const std::string& path) {
  const std::string csv = read_text(path);
  std::size_t count = 0;
  for (const std::string_view line : split_lines(csv)) {
    const std::vector<Cell> cells = parse_cells(line, CellPlace{path, std::nullopt, std::nullopt});
    count += std::count_if(cells.begin(), cells.end(), is_communication);
  }
  return count;
}

Schedule read_schedule(const std::string& path) { return parse_schedule(read_text(path), path); }

}  // namespace dualpipe
