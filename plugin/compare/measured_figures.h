// plugin/compare/measured_figures.h
//
// add_measured_figures(): what the timeline files of a schedule's runs say.
#pragma once

#include <vector>

#include "plugin/compare/comparison.h"

namespace dualpipe::compare {

// Fills the figures that come from timelines, as far as the files have what they need. Steps of the first `warmup`
// iterations are left out.
void add_measured_figures(ScheduleFigures& figures, const std::vector<RunFiles>& rounds, std::size_t warmup);

}  // namespace dualpipe::compare
