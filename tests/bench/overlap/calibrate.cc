#include "tests/bench/overlap/calibrate.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>

namespace dualpipe::bench {
namespace {

constexpr int kSamples = 30;
constexpr int kWarmUp = 10;  // Until the connections have found the links' pace.

std::int64_t whole_copies(double values) { return std::max<std::int64_t>(1, std::llround(values / kCopies)) * kCopies; }

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

double measure(std::int64_t values, ExpertGroup& experts, Ranks& ranks) {
  const at::Tensor tensor = at::ones({values});
  ranks.barrier();
  std::vector<double> samples;
  for (int i = -kWarmUp; i < kSamples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    experts.start(tensor)->wait();
    if (i >= 0) samples.push_back(Milliseconds(std::chrono::steady_clock::now() - start).count());
  }
  return ranks.value_of_rank0(median(samples));
}

}  // namespace

StageCosts calibrate(StageCosts costs, Milliseconds wanted, double megabits_per_second, ExpertGroup& experts,
                     Ranks& ranks) {
  const double guess = wanted.count() * megabits_per_second * 1e3 / (8 * sizeof(float));
  costs.values = whole_copies(guess);
  costs.values = whole_copies(guess * wanted.count() / measure(costs.values, experts, ranks));
  costs.exchange_ms = measure(costs.values, experts, ranks);
  return costs;
}

}  // namespace dualpipe::bench
