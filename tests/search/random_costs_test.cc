// Over random cost settings the choice is valid, never worse than the best named schedule, and better in most of those
// with ranks to fill. SEARCH_TEST_EVALUATIONS raises the budget of each from what a test can take.
#include <gmock/gmock.h>

#include <cstdlib>
#include <limits>
#include <sstream>

#include "plugin/analysis/memory.h"
#include "plugin/analysis/simulate.h"
#include "plugin/analysis/validate.h"
#include "plugin/search/choose_schedule.h"
#include "plugin/search/random.h"
#include "tests/search/best_named.h"

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

// Stages of a model cut into P or 2P, each a random share longer or shorter than the mean.
void draw_stages(search::Random& random, AutoRequest& request) {
  const int stages = request.pipeline_model_parallel_size * (random.coin() ? 2 : 1);
  for (int i = 0; i < stages; ++i) {
    const double size = between(random, 0.5, 1.5);
    StageCost stage = request.cost.uniform;
    for (double* part : {&stage.forward, &stage.backward_input, &stage.backward_weight, &stage.overlapped}) {
      *part *= size;
    }
    request.cost.per_stage.push_back(stage);
  }
}

// One that an order of the loop keeps.
void draw_limit(search::Random& random, AutoRequest& request) {
  const int ranks = request.pipeline_model_parallel_size;
  if (random.coin()) {
    request.max_activations = 1 + random.below(2 * ranks);
    return;
  }
  double largest = 0;
  for (int i = 0; i < ranks; ++i) {
    const double parameters = between(random, 1e9, 2e9);
    const double activations = between(random, 1e8, 1e9);
    request.bytes.push_back({parameters, parameters, 2 * parameters, activations});
    largest = std::max(largest, 4 * parameters + activations);
  }
  request.memory_limit_gb = largest / 1e9 * between(random, 1.01, 3);
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
  if (random.below(3) == 0) draw_stages(random, request);
  if (random.below(3) == 0) draw_limit(random, request);
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
       << ",latency=" << request.cost.latency << ", stages " << request.cost.per_stage.size() << ", max_activations "
       << request.max_activations.value_or(0) << ", GB " << request.memory_limit_gb.value_or(0);
  return text.str();
}

TEST(RandomCosts, NeverWorseAndMostlyBetter) {
  int with_room = 0;
  int better = 0;
  for (int seed = 0; seed < kSettings; ++seed) {
    search::Random random(seed);
    const AutoRequest request = draw(random);
    SCOPED_TRACE(describe(seed, request));
    const AutoChoice choice = choose_schedule(request);
    const double named = best_named_makespan(request).value_or(std::numeric_limits<double>::infinity());
    ASSERT_TRUE(validate(choice.schedule).empty());
    ASSERT_TRUE(validate(lower(choice.schedule)).empty());
    ASSERT_EQ(simulate(choice.schedule, choice.cost).makespan(), choice.makespan);
    ASSERT_LE(choice.makespan, named * (1 + 1e-12));
    ASSERT_GE(choice.makespan, choice.bound * (1 - 1e-12));
    if (request.memory_limit_gb) {
      for (const RankMemory& rank : memory_of(choice.schedule, choice.bytes)) {
        ASSERT_LE(rank.total(), *request.memory_limit_gb * 1e9 * (1 + 1e-12));
      }
    }
    if (request.max_activations) {
      ASSERT_LE(choice.peak_activations * request.pipeline_model_parallel_size,
                *request.max_activations * choice.schedule.placement.stages());
    }
    with_room += leaves_room(request);
    better += leaves_room(request) && choice.makespan < named * (1 - 1e-9);
  }
  RecordProperty("with_room", with_room);
  RecordProperty("better", better);
  EXPECT_GE(with_room, 20);
  EXPECT_GE(2 * better, with_room);
}

}  // namespace
}  // namespace dualpipe
