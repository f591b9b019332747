#include "tests/analysis/slow_pair.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace dualpipe {
namespace {

struct Task {
  bool communicates = false;
  double cost = 0;
};

// One chain of tasks with the times at which those that were started are done.
struct Chain {
  std::vector<Task> tasks;
  std::vector<double> done;

  bool ended() const { return done.size() == tasks.size(); }
  const Task& next() const { return tasks[done.size()]; }
  double ready() const { return done.empty() ? 0 : done.back(); }
  // The next task can be posted although nobody looks after it: what it needs was computed.
  bool posts_itself() const {
    return !ended() && next().communicates && (done.empty() || !tasks[done.size() - 1].communicates);
  }
};

struct World {
  Chain sides[2];                 // Forward, backward.
  std::vector<double> weights;    // Costs of the W whose I is done and which have not run.
  std::vector<double> weight_of;  // Per task of the backward; negative for a communication.
  double now = 0;
  double link = 0;  // When all that was posted is done.

  void post(int side) {
    Chain& chain = sides[side];
    now = std::max(now, chain.ready());
    link = std::max(now, link) + chain.next().cost;
    chain.done.push_back(link);
  }

  void compute(int side) {
    Chain& chain = sides[side];
    now = std::max(now, chain.ready()) + chain.next().cost;
    if (side == 1) {
      weights.push_back(weight_of[chain.done.size()]);
    }
    chain.done.push_back(now);
  }

  void run_weight() {
    now += weights.front();
    weights.erase(weights.begin());
  }
};

double least_from(World world);

// With or without what may be posted at this boundary, in any order.
double least_at_boundary(const World& world) {
  double least = std::numeric_limits<double>::infinity();
  const bool due = world.sides[0].posts_itself() || world.sides[1].posts_itself();
  for (int side = 0; side < 2; ++side) {
    const Chain& chain = world.sides[side];
    const bool chained = !chain.ended() && chain.next().communicates && !chain.posts_itself();
    if (chain.posts_itself() || (chained && (!due || chain.ready() <= world.now))) {
      World next = world;
      next.post(side);
      least = std::min(least, least_at_boundary(next));
    }
  }
  return due ? least : std::min(least, least_from(world));
}

double least_from(World world) {
  if (world.sides[0].ended() && world.sides[1].ended() && world.weights.empty()) {
    return std::max({world.now, world.sides[0].ready(), world.sides[1].ready()});
  }
  double least = std::numeric_limits<double>::infinity();
  for (int side = 0; side < 2; ++side) {
    if (!world.sides[side].ended() && !world.sides[side].next().communicates) {
      World next = world;
      next.compute(side);
      least = std::min(least, least_at_boundary(next));
    }
  }
  if (!world.weights.empty()) {
    world.run_weight();
    least = std::min(least, least_at_boundary(world));
  }
  return least;
}

}  // namespace

double slow_least_makespan(const Phases& forward, const Phases& backward) {
  World world;
  for (const PhaseSpec& phase : forward) {
    world.sides[0].tasks.push_back({phase.kind == PhaseKind::kCommunication, phase.forward});
  }
  for (auto phase = backward.rbegin(); phase != backward.rend(); ++phase) {
    const bool communicates = phase->kind == PhaseKind::kCommunication;
    if (!communicates || phase->has_backward) {
      world.sides[1].tasks.push_back({communicates, phase->backward_input});
      world.weight_of.push_back(communicates ? -1 : phase->backward_weight);
    }
  }
  return least_at_boundary(world);
}

}  // namespace dualpipe
