// plugin/analysis/picture_layout.h
//
// Where the parts of a picture lie, in pixels: lanes as high as their number allows, time as wide as labels need.
#pragma once

#include <vector>

#include "plugin/analysis/simulate.h"

namespace dualpipe::analysis {

// A cell of a lane: an action, or one half of a pair.
struct CellTimes {
  double start = 0;
  double end = 0;
};

// One entry, or two for a pair: F, then B.
std::vector<CellTimes> cells_of(const Span& span);

struct Layout {
  double width = 0;
  double height = 0;
  double left = 0;           // Of the lanes.
  double right = 0;          // Where the makespan ends.
  double top = 0;            // Of the first lane.
  double pitch = 0;          // From lane to lane.
  double lane = 0;           // Height of a lane.
  double scale = 0;          // Pixels per unit of time; 0 where nothing takes time.
  double cell_font = 0;      // Of a number in a cell.
  bool upright = false;      // Numbers are read from below.
  bool has_numbers = false;  // Some cell is large enough for its number.
  double rank_font = 0;
  int ranks = 0;
  int ranks_per_label = 1;
  double tick = 0;  // Time between two ticks of the axis; 0 where there is no scale.

  double x(double time) const { return left + time * scale; }
  double y(int rank) const { return top + rank * pitch; }
  double bottom() const { return top + ranks * pitch; }
  bool has_upper_axis() const { return ranks > 24; }
};

// Rows of text below the lanes and above them are not known here: `header` and `footer` are their heights. `width` is
// the picture's, 0 to choose one.
Layout lay_out(const Timeline& timeline, int width, double header, double footer);

}  // namespace dualpipe::analysis
