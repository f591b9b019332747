#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "plugin/schedule/cells.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/kind_name.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr std::string_view kForm =
    "a cell must be <stage><kind><micro-batch> like 0F7, <stage><kind> like 0REDUCE_GRAD, or a pair like "
    "(0F7;7B3)OVERLAP_F_B";

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

class CellParser {
 public:
  CellParser(std::string_view cell, const CellPlace& place) : cell_(cell), place_(place) {}

  Action action() const {
    if (!cell_.starts_with('(')) {
      return single(op(cell_));
    }
    const auto semicolon = cell_.find(';');
    const auto close = cell_.find(')');
    if (semicolon == std::string_view::npos || close == std::string_view::npos || semicolon > close) {
      refuse(kForm);
    }
    if (trim(cell_.substr(close + 1)) != kOverlapName) {
      refuse(kForm);
    }
    const Op forward = op(trim(cell_.substr(1, semicolon - 1)));
    const Op backward = op(trim(cell_.substr(semicolon + 1, close - semicolon - 1)));
    if (forward.kind != Kind::kForward || backward.kind != Kind::kBackward) {
      refuse("an overlapped pair must be an F and a B, like (0F7;7B3)OVERLAP_F_B");
    }
    return overlap(forward, backward);
  }

 private:
  Op op(std::string_view text) const {
    const std::optional<int> stage = number(text, std::numeric_limits<std::uint16_t>::max(), "a stage");
    const std::string_view name = text.substr(0, text.find_first_of("0123456789"));
    const std::optional<Kind> kind = find_kind(name);
    text.remove_prefix(name.size());
    const std::optional<int> micro_batch = number(text, kMaxMicroBatch, "a micro-batch");
    if (!stage || !kind || !text.empty() || micro_batch.has_value() != has_micro_batch(*kind)) {
      refuse(kForm);
    }
    return make_op(*stage, *kind, micro_batch.value_or(0));
  }

  // Takes the digits off the front of `text`; nothing where there are none. A number beyond `most` is refused.
  std::optional<int> number(std::string_view& text, int most, std::string_view what) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::invalid_argument || text.starts_with('-')) {
      return std::nullopt;
    }
    if (error == std::errc::result_out_of_range || value > most) {
      refuse(std::string(what) + " must be at most " + std::to_string(most));
    }
    text.remove_prefix(end - text.data());
    return value;
  }

  static std::optional<Kind> find_kind(std::string_view name) {
    for (int kind = 0; kind < kKindCount; ++kind) {
      if (kKindNames[kind] == name) {
        return static_cast<Kind>(kind);
      }
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse(std::string_view rule) const { refuse_cell(cell_, place_, rule); }

  static constexpr int kMaxMicroBatch = std::numeric_limits<std::int32_t>::max() - 1;

  std::string_view cell_;
  const CellPlace& place_;
};

}  // namespace

void refuse_cell(std::string_view cell, const CellPlace& place, std::string_view rule) {
  std::string where;
  if (place.rank) {
    where += "rank " + std::to_string(*place.rank) + ", ";
  }
  if (place.column) {
    where += "column " + std::to_string(*place.column) + ": ";
  }
  throw ScheduleError(place.origin, where + std::string(rule) + ", got \"" + std::string(cell) + "\"");
}

std::vector<Cell> parse_cells(std::string_view line, CellPlace place) {
  std::vector<Cell> cells;
  for (int column = 0;; ++column) {
    const auto comma = line.find(',');
    const std::string_view text = trim(line.substr(0, comma));
    if (!text.empty()) {
      place.column = column;
      cells.push_back({CellParser(text, place).action(), column});
    }
    if (comma == std::string_view::npos) {
      return cells;
    }
    line.remove_prefix(comma + 1);
  }
}

Action parse_action(std::string_view cell) {
  return CellParser(trim(cell), CellPlace{"schedule text", std::nullopt, std::nullopt}).action();
}

Row parse_row(std::string_view line) {
  Row row;
  for (const Cell& cell : parse_cells(line, CellPlace{"schedule text", std::nullopt, std::nullopt})) {
    row.push_back(cell.action);
  }
  return row;
}

}  // namespace dualpipe
