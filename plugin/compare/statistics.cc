#include "plugin/compare/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr int kSamples = 2000;
constexpr double kTail = 0.025;

std::vector<double> pool(const Rounds& rounds) {
  std::vector<double> values;
  for (const std::vector<double>& round : rounds) values.insert(values.end(), round.begin(), round.end());
  return values;
}

// The standard fixes what the engine gives, but not what its distributions make of that.
std::size_t draw(std::mt19937_64& random, std::size_t count) {
  return static_cast<std::size_t>(static_cast<double>(random() >> 11) * 0x1p-53 * static_cast<double>(count));
}

void resample(const std::vector<double>& values, std::mt19937_64& random, std::vector<double>& into) {
  for (std::size_t i = 0; i < values.size(); ++i) into.push_back(values[draw(random, values.size())]);
}

double sample_ratio(const Rounds& baseline, const Rounds& rounds, std::mt19937_64& random) {
  std::vector<double> before;
  std::vector<double> after;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const std::size_t round = draw(random, rounds.size());
    resample(baseline[round], random, before);
    resample(rounds[round], random, after);
  }
  return median(std::move(before)) / median(std::move(after));
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

Estimate speed_up(const Rounds& baseline, const Rounds& rounds, std::uint64_t seed) {
  check(baseline.size() == rounds.size(), "both schedules ran in every round");
  std::mt19937_64 random(seed);
  std::vector<double> ratios;
  for (int i = 0; i < kSamples; ++i) ratios.push_back(sample_ratio(baseline, rounds, random));
  return {median(pool(baseline)) / median(pool(rounds)), quantile(ratios, kTail), quantile(ratios, 1 - kTail)};
}

}  // namespace dualpipe
