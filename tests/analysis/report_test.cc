#include "plugin/analysis/report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "plugin/schedule/registry.h"

namespace dualpipe {
namespace {

Schedule make(const std::string& name, int ranks, int num_microbatches) {
  return builtin_registry().make(name, {ranks, num_microbatches, 2});
}

TEST(Report, JsonHasTheKeysAndReadsBack) {
  const auto json = nlohmann::ordered_json::parse(to_json(report(make("dualpipe", 8, 20), CostModel{})));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys,
              testing::ElementsAre("schedule", "pipeline_model_parallel_size", "num_microbatches", "makespan", "idle",
                                   "bubble_closed_form", "peak_activations", "utilization", "least_slots"));
  EXPECT_EQ(json["schedule"], "dualpipe");
  EXPECT_EQ(json["pipeline_model_parallel_size"], 8);
  EXPECT_EQ(json["num_microbatches"], 20);
  EXPECT_EQ(json["makespan"], 66);
  EXPECT_EQ(json["idle"], std::vector<double>(8, 6));
  EXPECT_EQ(json["bubble_closed_form"], 6);
  EXPECT_EQ(json["peak_activations"], std::vector<int>(8, 9));
  EXPECT_DOUBLE_EQ(json["utilization"], 60.0 / 66.0);
  EXPECT_EQ(json["least_slots"], 2);
}

TEST(Report, ClosedFormIsNullWhereThereIsNone) {
  const auto json = nlohmann::json::parse(to_json(report(make("interleaved_1f1b", 2, 4), CostModel{})));
  EXPECT_TRUE(json["bubble_closed_form"].is_null());
}

TEST(Report, KeepsAllDigits) {
  const PlanReport plan = report(make("dualpipe", 4, 8), parse_cost("forward=0.1,backward_input=0.3"));
  const auto json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json["makespan"].get<double>(), plan.makespan);
  EXPECT_EQ(json["utilization"].get<double>(), plan.utilization);
}

}  // namespace
}  // namespace dualpipe
