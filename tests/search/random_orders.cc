#include "tests/search/random_orders.h"

#include "plugin/search/evaluate.h"
#include "plugin/search/first_orders.h"
#include "plugin/search/mutate.h"

namespace dualpipe::search {
namespace {

double quarters(Random& random) { return 0.25 * random.below(13); }

StageCost draw_cost(Random& random) { return {quarters(random), quarters(random), quarters(random), quarters(random)}; }

}  // namespace

DrawnLanes draw_lanes(Random& random) {
  const int kind = random.below(4);
  const int ranks = kind == 3 ? 2 * (1 + random.below(2)) : 1 + random.below(4);
  const int micro_batches = kind == 3 ? 2 * (1 + random.below(4)) : 1 + random.below(8);
  const Placement placement = kind == 0   ? Placement::loop(ranks)
                              : kind == 1 ? Placement::loop(ranks, 2)
                              : kind == 2 ? Placement::vee(ranks)
                                          : Placement::bidirectional(ranks, micro_batches);
  CostModel cost;
  cost.latency = quarters(random);
  cost.uniform = draw_cost(random);
  for (int stage = 0; random.coin() && stage < placement.stages(); ++stage) cost.per_stage.push_back(cost.uniform);
  cost.per_stage.resize(cost.per_stage.empty() ? 0 : placement.stages(), draw_cost(random));
  Limits limits;
  if (random.coin()) limits.max_activations = 2 + random.below(8);
  const std::vector<std::string> names = {"loop", "loop of 2 chunks", "v", "bidirectional"};
  return {names[kind] + " P=" + std::to_string(ranks) + " M=" + std::to_string(micro_batches),
          Lanes(placement, micro_batches, cost, limits)};
}

Words draw_words(const Lanes& lanes, Random& random, int changes) {
  const std::optional<Words> greedy = greedy_order(lanes, {.backward_first = random.coin(), .split = random.coin()});
  Words words = greedy && random.coin() ? *greedy : sequential_order(lanes);
  Evaluator evaluator(lanes);
  for (int i = 0; i < changes; ++i) {
    const int rank = random.below(lanes.ranks());
    const Word before = words[rank];
    if (!mutate(words[rank], random) || !evaluator.check_word(rank, words[rank]).holds) words[rank] = before;
  }
  return words;
}

}  // namespace dualpipe::search
