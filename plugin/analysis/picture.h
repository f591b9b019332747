// plugin/analysis/picture.h
//
// A Timeline as an SVG picture: a lane per rank, time to the right and to scale. Forward is orange, backward green, I
// and W are shades of green; an overlapped pair is one framed cell, split into its F and its B. What a rank holds
// second (the other direction of DualPipe, the way back of a V, every other chunk) is darker. Idle time is the grey of
// the lane.
//
// Cells carry their micro-batch's number where it fits, upright where cells are narrow, and their text form and times
// always, for a pointer that hovers over them. Lanes and fonts shrink with the number of ranks. The same timeline and
// options give the same bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

struct PictureOptions {
  std::string title = {};                   // The first line, above the makespan and the bubble.
  std::string caption = {};                 // The line below them, e.g. the costs.
  std::string unit = {};                    // Of time, e.g. "ms"; empty for the units of a cost model.
  std::optional<Placement> placement = {};  // Tells what a rank holds second; without it there is one shade.
  int width = 0;                            // In pixels, at least 480; 0 takes what the numbers need, within bounds.
};

inline constexpr int kLeastPictureWidth = 480;
inline constexpr std::size_t kMostPictureActions = 200000;  // A file of about 40 MB.

// Throws ScheduleError for more actions than that and for a width below the least.
std::string to_svg(const Timeline& timeline, const PictureOptions& options = {});

}  // namespace dualpipe
