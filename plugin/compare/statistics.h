// plugin/compare/statistics.h
//
// The few statistics of a comparison: quantiles, and how far to trust a ratio of medians.
#pragma once

#include <cstdint>
#include <vector>

namespace dualpipe {

// A value with the bounds of the interval that is named where it is made.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
};

// Between the two nearest values linearly, as numpy's default; q from 0 to 1. `values` has at least one.
double quantile(std::vector<double> values, double q);
double median(std::vector<double> values);
// The median between the quartiles.
Estimate quartiles(const std::vector<double>& values);

// Times of iterations, a list per round. The lists of two schedules with one index ran one after the other.
using Rounds = std::vector<std::vector<double>>;

// How many times as fast as `baseline`: the ratio of the medians over all rounds, between the bounds of its 95 %
// percentile bootstrap. A sample draws as many rounds as there are, with replacement, the same for both, since what
// disturbs a round disturbs all its runs; from each it draws as many iterations as it has. Same arguments, same result.
// Both have the same number of rounds, at least one, none of them empty.
Estimate speed_up(const Rounds& baseline, const Rounds& rounds, std::uint64_t seed);

}  // namespace dualpipe
