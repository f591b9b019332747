// Statistics: quantiles against those of numpy 2.4.6 with its defaults, Student's t against its tables, intervals by
// counting how often they hold the truth.
#include "plugin/compare/statistics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>

namespace dualpipe {
namespace {

TEST(Quantile, IsNumpys) {
  const std::vector<double> values = {3.2, 1.5, 9.75, 4.0, 4.5, 0.25, 7.0};
  const std::pair<double, double> expected[] = {{0, 0.25},    {0.1, 1.0}, {0.25, 2.35}, {0.5, 4.0},
                                                {0.75, 5.75}, {0.9, 8.1}, {1, 9.75}};
  for (const auto& [q, value] : expected) EXPECT_NEAR(quantile(values, q), value, 1e-12) << q;
  EXPECT_EQ(quantile({7}, 0.3), 7);
  EXPECT_EQ(median({1, 2}), 1.5);
  const Estimate spread = quartiles(values);
  EXPECT_EQ(spread.value, 4);
  EXPECT_NEAR(spread.low, 2.35, 1e-12);
  EXPECT_EQ(spread.high, 5.75);
}

// Tables of the distribution have them to three decimals.
TEST(StudentT, IsThatOfTables) {
  const std::pair<int, double> expected[] = {{1, 12.706}, {2, 4.303},   {3, 3.182},  {4, 2.776},
                                             {5, 2.571},  {9, 2.262},   {10, 2.228}, {29, 2.045},
                                             {30, 2.042}, {120, 1.980}, {999, 1.962}};
  for (const auto& [freedom, value] : expected) EXPECT_NEAR(student_t_95(freedom), value, 5.1e-4) << freedom;
}

const Rounds kBefore = {{100, 101, 103, 99, 120}, {110, 108, 109, 111, 150}, {95, 96, 97, 94, 98}};
const Rounds kAfter = {{80, 82, 79, 81, 90}, {90, 88, 92, 91, 89}, {70, 72, 71, 73, 60}};

// By hand: ratios 101/81, 110/90 and 96/71, whose logarithms have mean 0.241003 and standard deviation 0.053481.
TEST(SpeedUp, IsTheMeanOfTheRoundsWithItsInterval) {
  const SpeedUp faster = speed_up(kBefore, kAfter);
  EXPECT_NEAR(faster.value, std::cbrt(101.0 / 81 * 110 / 90 * 96 / 71), 1e-12);
  EXPECT_NEAR(*faster.low, 1.114215, 1e-5);
  EXPECT_NEAR(*faster.high, 1.453329, 1e-5);
}

TEST(SpeedUp, HasNoIntervalWithFewRounds) {
  for (const std::size_t rounds : {1, 2}) {
    const SpeedUp faster =
        speed_up({kBefore.begin(), kBefore.begin() + rounds}, {kAfter.begin(), kAfter.begin() + rounds});
    EXPECT_FALSE(faster.low) << rounds;
    EXPECT_FALSE(faster.high) << rounds;
  }
  EXPECT_NEAR(speed_up({kBefore[0]}, {kAfter[0]}).value, 101.0 / 81, 1e-12);
}

// What slows a whole round down slows both schedules, and so does not widen the interval.
TEST(SpeedUp, IsNotBlurredByRoundsThatWereSlow) {
  const SpeedUp faster = speed_up({{100, 100}, {300, 300}, {50, 50}}, {{50, 50}, {150, 150}, {25, 25}});
  EXPECT_NEAR(faster.value, 2, 1e-12);
  EXPECT_NEAR(*faster.low, 2, 1e-12);
  EXPECT_NEAR(*faster.high, 2, 1e-12);
}

// Sums of uniform numbers, by a generator of its own.
class Noise {
 public:
  double uniform() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }
  // Nearly normal, with mean 0 and standard deviation 1.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_ = 42;
};

// A run as a whole is 5 % slower or faster than the next, its iterations 2 %.
std::vector<double> run_of(Noise& noise, double ms) {
  std::vector<double> times;
  const double run = ms * (1 + 0.05 * noise.normal());
  for (int i = 0; i < 25; ++i) times.push_back(run * (1 + 0.02 * noise.normal()));
  return times;
}

// The interval covers the truth about as often as it says, though iterations of one run are alike.
TEST(SpeedUp, CoversTheTruthWhereRunsDiffer) {
  constexpr int kTrials = 400;
  constexpr double kTruth = 1.5;
  for (const int rounds : {3, 5}) {
    Noise noise;
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      Rounds before, after;
      for (int round = 0; round < rounds; ++round) {
        before.push_back(run_of(noise, kTruth * 10));
        after.push_back(run_of(noise, 10));
      }
      const SpeedUp faster = speed_up(before, after);
      covered += *faster.low <= kTruth && kTruth <= *faster.high ? 1 : 0;
    }
    EXPECT_GE(covered, kTrials * 92 / 100) << rounds;  // Of 95 % expected.
    EXPECT_LE(covered, kTrials * 98 / 100) << rounds;
  }
}

}  // namespace
}  // namespace dualpipe
