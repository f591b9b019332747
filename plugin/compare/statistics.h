// plugin/compare/statistics.h
//
// The few statistics of a comparison: quantiles, and how far to trust a ratio of medians.
#pragma once

#include <optional>
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

// What Student's t with so many degrees of freedom, at least one, exceeds on either side in 5 % of all cases.
double student_t_95(int freedom);

// Times of iterations, a list per round. The lists of two schedules with one index ran one after the other.
using Rounds = std::vector<std::vector<double>>;

// The bounds of a 95 % interval where there are rounds enough for one: both, or neither.
struct SpeedUp {
  double value = 1;
  std::optional<double> low;
  std::optional<double> high;
};

// Fewer say nothing of how much one differs from the next that an interval could be made of.
inline constexpr int kLeastRoundsOfInterval = 3;

// How many times as fast as `baseline`: the geometric mean over the rounds of the ratio of medians. What disturbs a run
// disturbs all its iterations, so runs count, not iterations: the interval is Student's t over the logarithms of the
// rounds' ratios. Both have the same number of rounds, at least one, none of them empty. Where a median is 0 the value
// is 0 or not finite.
SpeedUp speed_up(const Rounds& baseline, const Rounds& rounds);

}  // namespace dualpipe
