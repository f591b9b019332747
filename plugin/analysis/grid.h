// plugin/analysis/grid.h
//
// A Timeline as a table for a terminal: a row per rank, time to the right, cells as wide as their duration, labelled in
// the text form. Forward is orange, backward green, I and W are shades of green; an overlapped pair is split into its F
// and its B. Without colour a cell starts with '|' and the B of a pair with '+'. Idle time is empty.
#pragma once

#include <string>

#include "plugin/analysis/simulate.h"

namespace dualpipe {

struct GridOptions {
  bool colour = false;  // ANSI escapes (256 colours).
  int max_width = 0;    // Columns of the terminal; a wider grid continues in further bands below. 0: one wide band.
  int max_bands = 0;    // At most this many bands; the last line says how much was left out. 0: all of them.
};

std::string to_grid(const Timeline& timeline, const GridOptions& options = {});

}  // namespace dualpipe
