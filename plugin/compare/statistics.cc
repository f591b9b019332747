#include "plugin/compare/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr double kConfidence = 0.95;

// Within t of 0 on either side: the closed forms 26.7.3 and 26.7.4 of Abramowitz and Stegun, Handbook of Mathematical
// Functions.
double student_share(double t, int freedom) {
  const double angle = std::atan(t / std::sqrt(freedom));
  const bool is_odd = freedom % 2 == 1;
  const double cosine = std::cos(angle);
  double term = is_odd ? cosine : 1;
  double sum = freedom > 1 ? term : 0;
  for (int power = is_odd ? 3 : 2; power <= freedom - 2; power += 2) {
    term *= cosine * cosine * (power - 1) / power;
    sum += term;
  }
  const double share = std::sin(angle) * sum;
  return is_odd ? 2 / std::numbers::pi * (angle + share) : share;
}

// A logarithm per round.
std::vector<double> log_ratios(const Rounds& baseline, const Rounds& rounds) {
  std::vector<double> logs;
  for (std::size_t i = 0; i < rounds.size(); ++i) logs.push_back(std::log(median(baseline[i]) / median(rounds[i])));
  return logs;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_error(const std::vector<double>& values) {
  const double middle = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  const auto count = static_cast<double>(values.size());
  return std::sqrt(sum / (count - 1) / count);
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  check(!values.empty(), "a quantile is one of some values");
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Estimate quartiles(const std::vector<double>& values) {
  return {median(values), quantile(values, 0.25), quantile(values, 0.75)};
}

double student_t_95(int freedom) {
  check(freedom >= 1, "Student's t has at least one degree of freedom");
  double low = 0;
  double high = 16;  // 12.7 with one degree of freedom.
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (student_share(middle, freedom) < kConfidence ? low : high) = middle;
  }
  return high;
}

SpeedUp speed_up(const Rounds& baseline, const Rounds& rounds) {
  check(baseline.size() == rounds.size(), "both schedules ran in every round");
  const std::vector<double> logs = log_ratios(baseline, rounds);
  const double middle = mean(logs);
  SpeedUp faster{std::exp(middle), std::nullopt, std::nullopt};
  const int count = static_cast<int>(logs.size());
  if (count < kLeastRoundsOfInterval) return faster;
  const double reach = student_t_95(count - 1) * standard_error(logs);
  faster.low = std::exp(middle - reach);
  faster.high = std::exp(middle + reach);
  return faster;
}

}  // namespace dualpipe
