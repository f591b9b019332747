// plugin/analysis/picture_style.h
//
// The colours and fonts of a picture, and which of the two shades an operation has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/picture_layout.h"
#include "plugin/schedule/placement.h"

namespace dualpipe::analysis {

// Tells what a rank holds second: the other direction of a bidirectional placement, every other stage of the rank in
// the others.
class Shades {
 public:
  explicit Shades(const std::optional<Placement>& placement);
  // False without a placement.
  bool is_dark(const Op& op) const;

 private:
  std::optional<Placement> placement_;
  std::vector<bool> dark_stages_;
};

// "f1" to "w2", and the number's "n1" or "n2"; 2 is the dark shade.
std::string cell_class(Kind kind, bool dark);
std::string number_class(bool dark);

double frame_width(const Layout& layout);  // Of the line around a pair.

// A <style> element. Every rule is below .dualpipe, so that a page may hold the picture among other things.
std::string style_sheet(const Layout& layout);

}  // namespace dualpipe::analysis
