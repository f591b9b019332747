// tests/bench/overlap/case.h
//
// Stages with one ratio of all-to-all to compute, and steps of a pipeline made of them.
#pragma once

#include <nlohmann/json.hpp>

#include "plugin/runtime/dualpipe.h"
#include "tests/bench/overlap/measure.h"

namespace dualpipe::bench {

// At the pace of every compute.
Sleeper sleeper_of(const Settings& settings);

// Exchanges of `ratio` times the compute of a pair.
StageCosts costs_of(const Settings& settings, double ratio, ExpertGroup& experts, Ranks& ranks);

// What a chunk's F, I, W and its overlapped pair cost where nothing is lost.
StageCost ideal_cost(const StageCosts& costs);

nlohmann::json describe(const StageCosts& costs, double ratio);

class BenchPipeline {
 public:
  BenchPipeline(const std::string& schedule, std::shared_ptr<Transport> transport, const StageCosts& costs, bool phased,
                int num_microbatches, ExpertGroup& experts, Sleeper& sleeper);
  // One training step.
  StepResult step();

 private:
  std::int64_t tokens_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace dualpipe::bench
