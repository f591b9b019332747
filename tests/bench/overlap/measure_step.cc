#include "plugin/analysis/simulate.h"
#include "plugin/runtime/c10d_transport.h"
#include "tests/bench/overlap/case.h"
#include "tests/bench/overlap/measure.h"

namespace dualpipe::bench {
namespace {

double simulated_ms(const std::string& schedule, int ranks, int num_microbatches, const StageCosts& costs) {
  CostModel model;
  model.uniform = ideal_cost(costs);
  return simulate(builtin_registry().make(schedule, {ranks, num_microbatches}), model).makespan();
}

nlohmann::json measure_ratio(const Settings& settings, double ratio, int num_microbatches,
                             const std::shared_ptr<Transport>& transport, ExpertGroup& experts, Sleeper& sleeper,
                             Ranks& ranks) {
  const StageCosts costs = costs_of(settings, ratio, experts, ranks);
  nlohmann::json result = describe(costs, ratio);
  std::vector<BenchPipeline> pipelines;
  const std::string schedules[] = {"dualpipe", "1f1b"};
  for (const std::string& schedule : schedules) {
    pipelines.emplace_back(schedule, transport, costs, true, num_microbatches, experts, sleeper);
    pipelines.back().step();  // Agrees on shapes.
    result[schedule] = {{"ideal_ms", simulated_ms(schedule, ranks.pipeline_size(), num_microbatches, costs)},
                        {"samples_ms", nlohmann::json::array()}};
  }
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      const Milliseconds time = ranks.time([&] { pipelines[i].step(); });
      result[schedules[i]]["samples_ms"].push_back(time.count());
    }
  }
  return result;
}

}  // namespace

nlohmann::json measure_step(const Settings& settings, int num_microbatches, Ranks& ranks) {
  ExpertGroup experts = ranks.make_experts();
  const auto group = ranks.make_pipeline_group();
  const std::shared_ptr<Transport> transport = make_c10d_transport(group);
  Sleeper sleeper = sleeper_of(settings);
  nlohmann::json cases = nlohmann::json::array();
  for (double ratio : settings.ratios) {
    cases.push_back(measure_ratio(settings, ratio, num_microbatches, transport, experts, sleeper, ranks));
  }
  return {{"cases", cases}, {"overshoot", describe(sleeper.overshoot)}};
}

}  // namespace dualpipe::bench
