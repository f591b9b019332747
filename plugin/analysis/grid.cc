#include "plugin/analysis/grid.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

constexpr double kMostColumnsPerCell = 400;  // Of the longest action, when others are tiny.
constexpr char kIdle = 0;
constexpr const char* kReset = "\033[0m";

// A style is a Kind plus one; kIdle is none.
char style_of(Kind kind) { return static_cast<char>(static_cast<int>(kind) + 1); }

const char* escape_of(char style) {
  switch (static_cast<Kind>(style - 1)) {
    case Kind::kForward:
      return "\033[38;5;232;48;5;215m";
    case Kind::kBackward:
      return "\033[38;5;232;48;5;71m";
    case Kind::kBackwardInput:
      return "\033[38;5;232;48;5;115m";
    default:
      return "\033[38;5;232;48;5;157m";
  }
}

// Characters and styles of one rank, a character per column of time.
struct Strip {
  std::string text;
  std::string style;

  void paint(std::size_t begin, std::size_t end, char border, const std::string& label, char kind) {
    end = std::min(end, text.size());
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t offset = i - begin;
      const bool has_label = label.size() < end - begin;
      text[i] = offset == 0 ? border : has_label && offset <= label.size() ? label[offset - 1] : ' ';
      style[i] = kind;
    }
  }
};

std::size_t width_of_label(const Op& op) { return to_string(op).size() + 1; }

// Columns that the longest label of the timeline asks per unit of time, with `spare` columns more per cell.
double columns_per_unit(const Timeline& timeline, std::size_t spare) {
  double scale = 0;
  double longest = 0;
  for (const std::vector<Span>& spans : timeline.ranks) {
    for (const Span& span : spans) {
      const double duration = span.end - span.start;
      if (duration <= 0) {
        continue;
      }
      std::size_t width = width_of_label(span.action.op) + spare;
      if (span.action.paired) {
        width = 2 * std::max(width, width_of_label(*span.action.paired) + spare);
      }
      longest = std::max(longest, duration);
      scale = std::max(scale, static_cast<double>(width) / duration);
    }
  }
  return longest > 0 ? std::min(scale, kMostColumnsPerCell / longest) : 1;
}

bool is_whole(double value) { return std::abs(value - std::round(value)) < 1e-6; }

// The least scale at which every label fits, rounding to whole columns included.
double choose_scale(const Timeline& timeline) {
  const double scale = columns_per_unit(timeline, 0);
  for (const std::vector<Span>& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (!is_whole(span.start * scale) || !is_whole(span.end * scale)) {
        return std::ceil(columns_per_unit(timeline, 1));
      }
    }
  }
  return scale;
}

std::size_t column_of(double time, double scale) { return static_cast<std::size_t>(std::llround(time * scale)); }

Strip draw_strip(const std::vector<Span>& spans, double scale, std::size_t columns) {
  Strip strip{std::string(columns + 1, ' '), std::string(columns + 1, kIdle)};
  for (const Span& span : spans) {
    const std::size_t begin = column_of(span.start, scale);
    const std::size_t end = std::min(columns, column_of(span.end, scale));
    if (begin >= columns) {
      break;
    }
    const std::size_t middle = span.action.paired ? begin + (end - begin + 1) / 2 : end;
    strip.paint(begin, middle, '|', to_string(span.action.op), style_of(span.action.op.kind));
    if (span.action.paired) {
      strip.paint(middle, end, '+', to_string(*span.action.paired), style_of(span.action.paired->kind));
    }
    if (begin < end && strip.style[end] == kIdle) {
      strip.text[end] = '|';
    }
  }
  return strip;
}

std::string trimmed(const std::string& line) { return line.substr(0, line.find_last_not_of(' ') + 1); }

std::string coloured(const Strip& strip, std::size_t begin, std::size_t end) {
  std::string line;
  char current = kIdle;
  for (std::size_t i = begin; i < end; ++i) {
    if (strip.style[i] != current) {
      current = strip.style[i];
      line += current == kIdle ? kReset : escape_of(current);
    }
    const bool is_border = strip.text[i] == '|' || strip.text[i] == '+';
    line += current == kIdle ? " " : is_border ? "\u258f" : std::string(1, strip.text[i]);
  }
  return trimmed(current == kIdle ? line : line + kReset);
}

// Ticks of 1, 2 or 5 times a power of ten, at least ten columns apart.
double choose_tick(double scale) {
  double power = std::pow(10, std::floor(std::log10(10 / scale)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (factor * power * scale >= 10 - 1e-9) {
      return factor * power;
    }
  }
  return 10 * power;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string draw_ruler(double scale, std::size_t begin, std::size_t end) {
  const double tick = choose_tick(scale);
  std::string line(end - begin, ' ');
  for (double index = std::ceil(static_cast<double>(begin) / scale / tick - 1e-9) + 0.0;; ++index) {
    const std::size_t column = column_of(index * tick, scale);
    const std::string text = number(index * tick);
    if (column + text.size() > end) {
      return trimmed(line);
    }
    line.replace(column - begin, text.size(), text);
  }
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string draw_legend(const Timeline& timeline, bool colour) {
  bool used[4] = {};
  bool has_pair = false;
  for (const std::vector<Span>& spans : timeline.ranks) {
    for (const Span& span : spans) {
      used[static_cast<int>(span.action.op.kind)] = true;
      has_pair = has_pair || span.action.is_overlap();
      used[static_cast<int>(Kind::kBackward)] |= span.action.is_overlap();
    }
  }
  const char* names[] = {"F forward", "B backward", "I input gradient", "W weight gradient"};
  std::string line = "cells are <stage><kind><micro-batch>:";
  for (int kind = 0; kind < 4; ++kind) {
    if (used[kind]) {
      const std::string name = " " + std::string(names[kind]) + " ";
      line += colour ? " " + std::string(escape_of(style_of(static_cast<Kind>(kind)))) + name + kReset
                     : name.substr(0, name.size() - 1) + ",";
    }
  }
  if (!colour) {
    line.back() = has_pair ? ';' : ' ';
    line += has_pair ? " |F +B an overlapped pair" : "";
  }
  return trimmed(line) + "\n";
}

// Columns per band: a whole number of ticks where that does not waste much.
std::size_t band_width(const GridOptions& options, std::size_t label, std::size_t columns, double scale) {
  if (options.max_width <= 0) {
    return columns;
  }
  const std::size_t room = static_cast<std::size_t>(std::max(options.max_width - static_cast<int>(label) - 1, 20));
  const std::size_t tick = column_of(choose_tick(scale), scale);
  const std::size_t whole = tick > 0 ? room / tick * tick : room;
  return std::min(columns, whole * 4 >= room * 3 ? whole : room);
}

}  // namespace

std::string to_grid(const Timeline& timeline, const GridOptions& options) {
  const double scale = choose_scale(timeline);
  const std::size_t ranks = timeline.ranks.size();
  const std::size_t label = std::string("rank  ").size() + std::to_string(ranks == 0 ? 0 : ranks - 1).size();
  const std::size_t all_columns = std::max<std::size_t>(1, column_of(timeline.makespan(), scale));
  const std::size_t width = band_width(options, label, all_columns, scale);
  const std::size_t bands = options.max_bands > 0 ? static_cast<std::size_t>(options.max_bands)
                                                  : std::numeric_limits<std::size_t>::max() / width;
  const std::size_t columns = std::min(all_columns, bands * width);
  std::vector<Strip> strips;
  for (const std::vector<Span>& spans : timeline.ranks) {
    strips.push_back(draw_strip(spans, scale, columns));
  }
  std::string text;
  for (std::size_t begin = 0; begin < columns; begin += width) {
    const std::size_t end = std::min(columns, begin + width) + 1;  // With the border of the last cell.
    text += padded("time", label) + draw_ruler(scale, begin, end) + "\n";
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      text += padded("rank " + std::to_string(rank), label);
      text += options.colour ? coloured(strips[rank], begin, end) : strips[rank].text.substr(begin, end - begin);
      text = trimmed(text) + "\n";
    }
    text += "\n";
  }
  if (columns < all_columns) {
    text += "... from time " + number(static_cast<double>(columns) / scale) + " to " + number(timeline.makespan()) +
            " is left out\n";
  }
  return text + draw_legend(timeline, options.colour);
}

}  // namespace dualpipe
