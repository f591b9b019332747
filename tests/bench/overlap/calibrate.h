// tests/bench/overlap/calibrate.h
//
// Exchanges of a wanted length: what the links make of a number of bytes is measured, not assumed.
#pragma once

#include "tests/bench/overlap/moe_stage.h"
#include "tests/bench/overlap/ranks.h"

namespace dualpipe::bench {

// `costs` with exchanges that take about `wanted` alone, one behind the other, and how long they do take. Collective
// over all ranks, which all exchange at once and get rank 0's figures.
StageCosts calibrate(StageCosts costs, Milliseconds wanted, double megabits_per_second, ExpertGroup& experts,
                     Ranks& ranks);

}  // namespace dualpipe::bench
