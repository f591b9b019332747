// plugin/compare/differences.h
//
// Whether schedules train alike: losses and gradient norms beside those of a reference run.
#pragma once

#include <string>
#include <vector>

#include "plugin/compare/comparison.h"

namespace dualpipe::compare {

// |a - b| / |b|, b the reference; 0 where they are equal, infinite where one is not finite or the reference alone is 0.
double relative_difference(double a, double b);

// Fills the differences of all rounds to the reference, which has as many iterations.
void add_differences(ScheduleFigures& figures, const std::vector<RunFiles>& rounds,
                     const std::vector<IterationMetrics>& reference);

// A sentence for each difference of the run that is above its tolerance.
std::vector<std::string> mismatches_of(const ScheduleFigures& figures, const std::string& reference,
                                       const ComparisonOptions& options);

}  // namespace dualpipe::compare
