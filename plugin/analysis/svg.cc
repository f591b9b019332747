#include "plugin/analysis/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace dualpipe::analysis {
namespace {

constexpr double kWidthOfCharacter = 0.62;  // Of the font size; a digit of DejaVu Sans has 0.636, of Helvetica 0.556.
constexpr std::string_view kEllipsis = "\u2026";

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// What the leading byte announces; 0 for a byte that leads nothing.
std::size_t announced_length(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xC0 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF8 ? 4 : 0;
}

std::uint32_t decode(std::string_view sequence) {
  constexpr unsigned char kLeadingBits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  std::uint32_t point = static_cast<unsigned char>(sequence[0]) & kLeadingBits[sequence.size()];
  for (const char byte : sequence.substr(1)) {
    point = point << 6 | (static_cast<unsigned char>(byte) & 0x3F);
  }
  return point;
}

// What XML 1.0 takes beyond ASCII, in its shortest form.
bool is_character(std::uint32_t point, std::size_t length) {
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = point >= 0xD800 && point < 0xE000;
  return point >= kLeast[length] && point <= 0x10FFFF && !is_surrogate && point != 0xFFFE && point != 0xFFFF;
}

// Bytes of the UTF-8 character that starts here; 0 where none does.
std::size_t character_length(std::string_view text) {
  const std::size_t length = announced_length(static_cast<unsigned char>(text[0]));
  if (length == 0 || text.size() < length) {
    return 0;
  }
  const std::string_view sequence = text.substr(0, length);
  const bool whole = std::all_of(sequence.begin() + 1, sequence.end(), is_continuation);
  return whole && is_character(decode(sequence), length) ? length : 0;
}

void append_escaped(std::string& out, std::string_view character) {
  if (character == "&") {
    out += "&amp;";
  } else if (character == "<") {
    out += "&lt;";
  } else if (character == ">") {
    out += "&gt;";
  } else if (static_cast<unsigned char>(character[0]) < 0x20 || character[0] == 0x7F) {
    out += '?';
  } else {
    out += character;
  }
}

std::size_t count_characters(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_continuation));
}

std::string start_of_text(std::string_view css_class, double x, double y) {
  return "<text class=\"" + std::string(css_class) + "\" x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\"";
}

std::string end_of_text(std::string_view content) { return ">" + escaped(content) + "</text>"; }

}  // namespace

double rounded(double value) { return std::round(value * 100) / 100; }

std::string pixels(double value) {
  char buffer[32];
  const int length = std::snprintf(buffer, sizeof buffer, "%.2f", rounded(value) + 0.0);  // No negative zero.
  std::string text(buffer, static_cast<std::size_t>(length));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') {
    text.pop_back();
  }
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    append_escaped(out, length == 0 ? "?" : text.substr(0, length));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  return kWidthOfCharacter * font_size * static_cast<double>(count_characters(text));
}

std::string shortened(const std::string& text, double font_size, double width) {
  if (text_width(text, font_size) <= width) {
    return text;
  }
  std::string start = text;
  while (!start.empty() && text_width(start + std::string(kEllipsis), font_size) > width) {
    while (!start.empty() && is_continuation(start.back())) {
      start.pop_back();
    }
    start.resize(start.empty() ? 0 : start.size() - 1);
  }
  return start + std::string(kEllipsis);
}

std::string rect(std::string_view css_class, const Box& box) {
  return "<rect class=\"" + std::string(css_class) + "\" x=\"" + pixels(box.left) + "\" y=\"" + pixels(box.top) +
         "\" width=\"" + pixels(box.width) + "\" height=\"" + pixels(box.height) + "\"/>";
}

std::string line(std::string_view css_class, double x1, double y1, double x2, double y2) {
  return "<line class=\"" + std::string(css_class) + "\" x1=\"" + pixels(x1) + "\" y1=\"" + pixels(y1) + "\" x2=\"" +
         pixels(x2) + "\" y2=\"" + pixels(y2) + "\"/>";
}

std::string text(std::string_view css_class, double x, double y, std::string_view content) {
  return start_of_text(css_class, x, y) + end_of_text(content);
}

std::string upright_text(std::string_view css_class, double x, double y, std::string_view content) {
  return start_of_text(css_class, x, y) + " transform=\"rotate(-90 " + pixels(x) + " " + pixels(y) + ")\"" +
         end_of_text(content);
}

}  // namespace dualpipe::analysis
