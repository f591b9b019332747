// plugin/analysis/svg.h
//
// SVG elements as text. Coordinates are pixels, printed with two decimals at most, so that the same picture always has
// the same bytes; whatever is given as text comes out as valid XML.
#pragma once

#include <string>
#include <string_view>

namespace dualpipe::analysis {

struct Box {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

// "12.5", "3", "0.01": rounded to two decimals, without trailing zeros.
std::string pixels(double value);
// Rounded as pixels() prints it, so that boxes that meet meet on paper as well.
double rounded(double value);

// &, < and > as entities; control characters and bytes that are no UTF-8 as '?'.
std::string escaped(std::string_view text);

// An upper estimate of how wide a line of text is in the usual sans-serif fonts.
double text_width(std::string_view text, double font_size);
// The text, or a beginning of it with an ellipsis that is at most that wide.
std::string shortened(const std::string& text, double font_size, double width);

std::string rect(std::string_view css_class, const Box& box);
std::string line(std::string_view css_class, double x1, double y1, double x2, double y2);
// `y` is the baseline.
std::string text(std::string_view css_class, double x, double y, std::string_view content);
// As text(), but read from below, turned around (x, y).
std::string upright_text(std::string_view css_class, double x, double y, std::string_view content);

}  // namespace dualpipe::analysis
