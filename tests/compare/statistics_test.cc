// Statistics, against numpy 2.4.6: quantile() with its defaults, and 200,000 samples of a bootstrap written there
// (2,000 here, of ratios that are few and far between).
#include "plugin/compare/statistics.h"

#include <gmock/gmock.h>

#include <numeric>

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

const Rounds kBefore = {{100, 101, 103, 99, 120}, {110, 108, 109, 111, 150}, {95, 96, 97, 94, 98}};
const Rounds kAfter = {{80, 82, 79, 81, 90}, {90, 88, 92, 91, 89}, {70, 72, 71, 73, 60}};

TEST(SpeedUp, IsTheRatioOfMediansWithItsInterval) {
  const Estimate faster = speed_up(kBefore, kAfter, 1);
  EXPECT_NEAR(faster.value, 101.0 / 81, 1e-12);
  EXPECT_NEAR(faster.low, 1.15730337, 0.02);
  EXPECT_NEAR(faster.high, 1.36619718, 0.02);
}

TEST(SpeedUp, DrawsIterationsWhereThereIsOneRound) {
  const Estimate faster = speed_up({kBefore[0]}, {kAfter[0]}, 7);
  EXPECT_NEAR(faster.low, 1.12222222, 0.01);
  EXPECT_NEAR(faster.high, 1.48148148, 0.03);
}

TEST(SpeedUp, IsTheSameForTheSameSeed) {
  const Estimate a = speed_up(kBefore, kAfter, 3);
  const Estimate b = speed_up(kBefore, kAfter, 3);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
}

// What slows a whole round down slows both schedules, and so does not widen the interval.
TEST(SpeedUp, IsNotBlurredByRoundsThatWereSlow) {
  const Estimate faster = speed_up({{100, 100}, {300, 300}, {50, 50}}, {{50, 50}, {150, 150}, {25, 25}}, 5);
  EXPECT_EQ(faster.value, 2);
  EXPECT_EQ(faster.low, 2);
  EXPECT_EQ(faster.high, 2);
}

// The interval covers the truth about as often as it says: 100 pairs of samples whose medians differ by 1.5.
TEST(SpeedUp, CoversTheTruth) {
  std::uint64_t state = 42;
  const auto noise = [&] {  // Uniform in 0 to 1, by a generator of its own.
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<double>(state >> 11) * 0x1p-53;
  };
  int covered = 0;
  for (int trial = 0; trial < 100; ++trial) {
    Rounds before(1);
    Rounds after(1);
    for (int i = 0; i < 25; ++i) {
      before[0].push_back(1.5 * (10 + noise()));
      after[0].push_back(10 + noise());
    }
    const Estimate faster = speed_up(before, after, trial);
    covered += faster.low <= 1.5 && 1.5 <= faster.high ? 1 : 0;
  }
  EXPECT_GE(covered, 88);  // Of 95 expected.
}

}  // namespace
}  // namespace dualpipe
