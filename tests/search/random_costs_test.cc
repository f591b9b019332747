// Over random cost settings the choice is valid, never worse than the best named schedule, and better in most of those
// with ranks to fill. SEARCH_TEST_EVALUATIONS raises the budget of each from what a test can take.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "plugin/analysis/simulate.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/registry.h"
#include "plugin/search/choose_schedule.h"
#include "plugin/search/random.h"

namespace dualpipe {
namespace {

constexpr int kSettings = 200;

std::int64_t evaluations() {
  const char* value = std::getenv("SEARCH_TEST_EVALUATIONS");
  return value == nullptr ? 20'000 : std::atoll(value);
}

double between(search::Random& random, double low, double high) {
  return low + (high - low) * random.below(1 << 20) / (1 << 20);
}

AutoRequest draw(search::Random& random) {
  AutoRequest request;
  request.pipeline_model_parallel_size = 1 + random.below(8);
  request.num_microbatches = 1 + random.below(24);
  StageCost& stage = request.cost.uniform;
  stage.forward = between(random, 0.5, 2);
  stage.backward_input = between(random, 0.3, 2);
  stage.backward_weight = between(random, 0.3, 2);
  const double apart = stage.forward + stage.backward_input + stage.backward_weight;
  stage.overlapped = apart * between(random, 0.6, 1.15);
  request.cost.latency = random.coin() ? stage.forward * between(random, 0, 0.5) : 0;
  request.evaluations = evaluations();
  return request;
}

bool leaves_room(const AutoRequest& request) {
  const StageCost& stage = request.cost.uniform;
  return request.pipeline_model_parallel_size >= 4 &&
         (stage.overlapped >= stage.forward + stage.backward_input + stage.backward_weight ||
          request.cost.latency > 0.1 * stage.forward);
}

std::string describe(int seed, const AutoRequest& request) {
  std::ostringstream text;
  const StageCost& stage = request.cost.uniform;
  text << "seed " << seed << ", P=" << request.pipeline_model_parallel_size << ", M=" << request.num_microbatches
       << ", forward=" << stage.forward << ",backward_input=" << stage.backward_input
       << ",backward_weight=" << stage.backward_weight << ",overlapped=" << stage.overlapped
       << ",latency=" << request.cost.latency;
  return text.str();
}

// Of the named schedules that these sizes allow, simulated here: the stages of a V and of two chunks are half as long.
double best_named(const AutoRequest& request) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::string& name : builtin_registry().names()) {
    try {
      const Schedule schedule =
          builtin_registry().make(name, {request.pipeline_model_parallel_size, request.num_microbatches, 2});
      CostModel cost = request.cost;
      const double share = static_cast<double>(request.pipeline_model_parallel_size) / schedule.placement.stages();
      for (double* part : {&cost.uniform.forward, &cost.uniform.backward_input, &cost.uniform.backward_weight,
                           &cost.uniform.overlapped}) {
        *part *= share;
      }
      best = std::min(best, simulate(schedule, cost).makespan());
    } catch (const std::invalid_argument&) {
      continue;  // The schedule's own rule.
    }
  }
  return best;
}

TEST(RandomCosts, NeverWorseAndMostlyBetter) {
  int with_room = 0;
  int better = 0;
  for (int seed = 0; seed < kSettings; ++seed) {
    search::Random random(seed);
    const AutoRequest request = draw(random);
    SCOPED_TRACE(describe(seed, request));
    const AutoChoice choice = choose_schedule(request);
    const double named = best_named(request);
    ASSERT_TRUE(validate(choice.schedule).empty());
    ASSERT_TRUE(validate(lower(choice.schedule)).empty());
    ASSERT_EQ(simulate(choice.schedule, choice.cost).makespan(), choice.makespan);
    ASSERT_LE(choice.makespan, named * (1 + 1e-12));
    ASSERT_GE(choice.makespan, choice.bound * (1 - 1e-12));
    with_room += leaves_room(request);
    better += leaves_room(request) && choice.makespan < named * (1 - 1e-9);
  }
  RecordProperty("with_room", with_room);
  RecordProperty("better", better);
  EXPECT_GE(with_room, 50);
  EXPECT_GE(2 * better, with_room);
}

}  // namespace
}  // namespace dualpipe
