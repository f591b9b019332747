// tests/bench/split/measure.h
//
// What a split backward of a transformer layer costs over a full one.
#pragma once

#include <string>

namespace dualpipe::bench {

struct SplitSize {
  int hidden = 512;
  int tokens = 256;
  int heads = 8;
  int repeats = 40;
};

// Medians of repeats in which B comes first and last in turn, in seconds of this thread's CPU time: all of a backward
// runs on it, and other programs do not count. Forwards do not count either.
struct SplitTimes {
  double full = 0;    // B
  double input = 0;   // I
  double weight = 0;  // W
  double split = 0;   // I + W, repeat by repeat.
  double ratio = 0;   // (I + W) / B, repeat by repeat.
};

// The layer in one graph, or attention and MLP as phases.
SplitTimes measure_split(const SplitSize& size, bool phased);

}  // namespace dualpipe::bench
