#include "plugin/schedule/text.h"

#include <array>
#include <charconv>
#include <ostream>

#include "plugin/schedule/kind_name.h"

namespace dualpipe {
namespace {

void append(std::string& text, int number) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

void append(std::string& text, const Op& op) {
  append(text, static_cast<int>(op.stage));
  text += kind_name(op.kind);
  if (has_micro_batch(op.kind)) {
    append(text, op.micro_batch);
  }
}

void append(std::string& text, const Action& action) {
  if (!action.is_overlap()) {
    append(text, action.op);
    return;
  }
  text += '(';
  append(text, action.op);
  text += ';';
  append(text, *action.paired);
  text += ')';
  text += kOverlapName;
}

}  // namespace

std::string to_string(Kind kind) { return std::string(kind_name(kind)); }

std::string to_string(const Op& op) {
  std::string text;
  append(text, op);
  return text;
}

std::string to_string(const Action& action) {
  std::string text;
  append(text, action);
  return text;
}

std::string print_row(const Row& row) {
  std::string text;
  for (const Action& action : row) {
    if (!text.empty()) {
      text += ',';
    }
    append(text, action);
  }
  return text;
}

void print_rows(std::ostream& out, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    out << print_row(row) << '\n';
  }
}

}  // namespace dualpipe
