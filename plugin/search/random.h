// plugin/search/random.h
//
// Random numbers that are the same on every machine: integers and sums of them, no library function that may round
// differently (xorshift64*, Vigna 2016).
#pragma once

#include <bit>
#include <cstdint>

namespace dualpipe::search {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_((seed + 1) * 0x9E3779B97F4A7C15ULL | 1) { next(), next(); }

  // 0..count-1; `count` is at least 1.
  int below(int count) { return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(count) >> 32); }
  bool coin() { return next() >> 63 != 0; }

  // Near enough to an exponential distribution of mean 1 for annealing: a geometric number of halvings, linear between.
  double exponential() {
    const std::uint64_t bits = next() | 1;
    const int halvings = std::countl_zero(bits);
    const double rest = static_cast<double>((bits << halvings) >> 11) * 0x1p-52 - 1;  // 0..1
    return 0.6931471805599453 * (halvings + 1 - rest);
  }

 private:
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DULL;
  }

  std::uint64_t state_;
};

}  // namespace dualpipe::search
