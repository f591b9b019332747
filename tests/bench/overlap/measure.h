// tests/bench/overlap/measure.h
//
// What the benchmark measures on one rank, as data: samples and the ideals beside them. The launcher takes the slowest
// rank of each sample, medians, and judges.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/bench/overlap/moe_stage.h"
#include "tests/bench/overlap/ranks.h"

namespace dualpipe::bench {

struct Settings {
  int layers = 4;
  double compute_ms = 10;
  double megabits_per_second = 200;  // Of a link.
  int repeats = 3;
  std::vector<double> ratios = {0.5, 0.9};  // All-to-all over compute, of a pair.
};

// Two ranks, one pipeline of one rank each, DualPipeV: the overlapped pairs of its steps, merged and in sequence.
nlohmann::json measure_pair(const Settings& settings, Ranks& ranks);

// Whole steps of DualPipe and of 1F1B with `num_microbatches`.
nlohmann::json measure_step(const Settings& settings, int num_microbatches, Ranks& ranks);

}  // namespace dualpipe::bench
