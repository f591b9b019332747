#include "plugin/search/candidate.h"

#include <algorithm>

#include "plugin/analysis/divide_stages.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/registry.h"
#include "plugin/search/check_request.h"
#include "plugin/search/divide_stages.h"
#include "plugin/search/first_orders.h"
#include "plugin/search/improve.h"
#include "plugin/search/words.h"

namespace dualpipe::search {
namespace {

constexpr double kMostGreedySteps = 1e9;  // Letters times ranks.

struct Shape {
  PlacementKind kind;
  int chunks;
  std::vector<std::string> named;
};

bool is_asked_for(const AutoRequest& request, PlacementKind kind) {
  return request.placements.empty() ||
         std::find(request.placements.begin(), request.placements.end(), kind) != request.placements.end();
}

std::vector<Shape> shapes_of(const AutoRequest& request) {
  std::vector<Shape> shapes;
  if (is_asked_for(request, PlacementKind::kLoop)) {
    shapes.push_back({PlacementKind::kLoop, 1, {"zb1p", "1f1b"}});
    if (const int chunks = request.virtual_pipeline_model_parallel_size; chunks > 1) {
      shapes.push_back({PlacementKind::kLoop, chunks, {"interleaved_1f1b"}});
    }
  }
  if (is_asked_for(request, PlacementKind::kVee)) shapes.push_back({PlacementKind::kVee, 2, {"dualpipev"}});
  const bool both_even = request.pipeline_model_parallel_size % 2 == 0 && request.num_microbatches % 2 == 0;
  if (is_asked_for(request, PlacementKind::kBidirectional) && both_even) {
    shapes.push_back({PlacementKind::kBidirectional, 2, {"dualpipe"}});
  }
  if (shapes.empty()) {
    throw ScheduleError("auto", "the bidirectional placement needs an even number of ranks and of micro-batches, got " +
                                    std::to_string(request.pipeline_model_parallel_size) + " and " +
                                    std::to_string(request.num_microbatches) + "; the v placement takes any");
  }
  return shapes;
}

Placement placement_of(const Shape& shape, const AutoRequest& request) {
  const int ranks = request.pipeline_model_parallel_size;
  switch (shape.kind) {
    case PlacementKind::kLoop:
      return Placement::loop(ranks, shape.chunks);
    case PlacementKind::kVee:
      return Placement::vee(ranks);
    default:
      return Placement::bidirectional(ranks, request.num_microbatches);
  }
}

// What the named schedules of the placement hold at most.
int usual_activations(const Shape& shape, int ranks) {
  switch (shape.kind) {
    case PlacementKind::kLoop:
      return shape.chunks == 1 ? ranks : (shape.chunks - 1) * ranks + 2 * (ranks - 1) + 1;
    case PlacementKind::kVee:
      return 2 * ranks + 1;
    default:
      return ranks + 1;
  }
}

Limits limits_of(const Shape& shape, const Placement& placement, const std::vector<StageBytes>& bytes,
                 const AutoRequest& request) {
  Limits limits;
  if (request.max_activations) {
    limits.max_activations = static_cast<int>(static_cast<std::int64_t>(*request.max_activations) * placement.stages() /
                                              activation_stages(request));
  } else if (!request.memory_limit_gb) {
    limits.max_activations = usual_activations(shape, placement.ranks());
  }
  if (!request.memory_limit_gb) return limits;
  for (const StageBytes& stage : bytes) limits.activation_bytes.push_back(stage.activations);
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    double room = *request.memory_limit_gb * kBytesPerGb;
    for (const int stage : placement.stages_of(rank)) room -= bytes[stage].state();
    limits.room_bytes.push_back(room);
  }
  return limits;
}

// Parameters, and one live micro-batch of each stage of the rank.
double least_bytes_of(const Placement& placement, const std::vector<StageBytes>& bytes) {
  double most = 0;
  for (int rank = 0; rank < placement.ranks() && !bytes.empty(); ++rank) {
    double sum = 0;
    for (const int stage : placement.stages_of(rank)) {
      sum += bytes[stage].state() + bytes[stage].activations;
    }
    most = std::max(most, sum);
  }
  return most;
}

std::optional<Found> fitting(const Lanes& lanes, Words words) {
  Evaluator evaluator(lanes);
  std::vector<double> busy;
  for (int rank = 0; rank < lanes.ranks(); ++rank) {
    const WordCheck word = evaluator.check_word(rank, words[rank]);
    if (!word.holds) return std::nullopt;
    busy.push_back(word.busy);
  }
  const Score score = evaluator.evaluate(words, busy);
  if (score.makespan == kNever || !is_sound(lanes, words)) return std::nullopt;
  return Found{std::move(words), score};
}

// Nothing where the schedule's own rule forbids P or M.
std::optional<Schedule> make_named(const std::string& name, const AutoRequest& request) {
  try {
    return builtin_registry().make(name, {request.pipeline_model_parallel_size, request.num_microbatches,
                                          request.virtual_pipeline_model_parallel_size});
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

std::vector<NamedOrder> named_orders(const Shape& shape, const Lanes& lanes, const AutoRequest& request) {
  std::vector<NamedOrder> orders;
  for (const std::string& name : shape.named) {
    const std::optional<Schedule> schedule = make_named(name, request);
    if (!schedule) continue;
    if (std::optional<Found> order = fitting(lanes, to_words(lanes, *schedule))) {
      orders.push_back({name, std::move(*order)});
    }
  }
  return orders;
}

bool can_be_divided(const AutoRequest& request, int stages) {
  return analysis::can_divide(cost_stages(request), stages) &&
         (request.bytes.empty() || analysis::can_divide(static_cast<int>(request.bytes.size()), stages));
}

[[noreturn]] void refuse_division(const std::vector<Shape>& shapes, const AutoRequest& request) {
  std::string wanted;
  for (const Shape& shape : shapes) {
    const int stages = placement_of(shape, request).stages();
    wanted +=
        (wanted.empty() ? "" : ", ") + std::to_string(stages) + " for " + placement_name(shape.kind, shape.chunks);
  }
  throw ScheduleError(
      "auto", "the number of stages that costs are of must divide a placement's or be a multiple of it (" + wanted +
                  "), got " + std::to_string(cost_stages(request)) + "; for example " +
                  std::to_string(placement_of(shapes[0], request).stages()));
}

Candidate make_candidate(const Shape& shape, const AutoRequest& request) {
  const Placement placement = placement_of(shape, request);
  const CostModel cost = divide_costs(request.cost, cost_stages(request), placement.stages());
  const std::vector<StageBytes> bytes = divide_bytes(request.bytes, placement.stages());
  const Limits limits = limits_of(shape, placement, bytes, request);
  Lanes lanes(placement, request.num_microbatches, cost, limits);
  std::vector<NamedOrder> named = named_orders(shape, lanes, request);
  return {shape.kind,
          shape.chunks,
          cost,
          bytes,
          limits,
          std::move(lanes),
          std::move(named),
          shape.chunks,
          least_bytes_of(placement, bytes)};
}

}  // namespace

std::string placement_name(PlacementKind kind, int chunks) {
  const std::string name(to_string(kind));
  return kind == PlacementKind::kLoop && chunks > 1 ? name + " with " + std::to_string(chunks) + " chunks per rank"
                                                    : name;
}

bool Candidate::fits_at_all() const {
  if (limits.max_activations && *limits.max_activations < least_activations) return false;
  for (int rank = 0; rank < lanes.ranks() && lanes.counts_bytes; ++rank) {
    double wanted = 0;
    for (const int lane : lanes.of_rank[rank]) wanted += lanes.lanes[lane].activation_bytes;
    if (wanted > lanes.room_bytes[rank]) return false;
  }
  return true;
}

int Candidate::peak_activations(const Words& words) const {
  int most = 0;
  for (const Word& word : words) {
    int live = 0;
    for (const Letter& letter : word) {
      live += letter.has_forward();
      most = std::max(most, live);
      live -= letter.frees();
    }
  }
  return most;
}

std::optional<double> Candidate::peak_memory_gb(const Words& words) const {
  if (bytes.empty()) return std::nullopt;
  double most = 0;
  for (int rank = 0; rank < lanes.ranks(); ++rank) {
    double held = 0;
    for (const int stage : lanes.placement.stages_of(rank)) held += bytes[stage].state();
    for (const Letter& letter : words[rank]) {
      if (letter.has_forward()) held += bytes[lanes.lanes[letter.lane].stage].activations;
      most = std::max(most, held);
      if (letter.frees()) held -= bytes[lanes.lanes[letter.backward_lane()].stage].activations;
    }
  }
  return most / kBytesPerGb;
}

std::vector<Candidate> make_candidates(const AutoRequest& request) {
  check_request(request);
  const std::vector<Shape> shapes = shapes_of(request);
  std::vector<Candidate> candidates;
  for (const Shape& shape : shapes) {
    if (!can_be_divided(request, placement_of(shape, request).stages())) continue;
    candidates.push_back(make_candidate(shape, request));
  }
  if (candidates.empty()) refuse_division(shapes, request);
  return candidates;
}

std::vector<Found> starts_of(const Candidate& candidate) {
  std::vector<Found> starts;
  const auto add = [&](std::optional<Words> words) {
    if (!words) return;
    if (std::optional<Found> order = fitting(candidate.lanes, std::move(*words))) starts.push_back(std::move(*order));
  };
  for (const NamedOrder& named : candidate.named) starts.push_back(named.order);
  const double letters = 3.0 * static_cast<double>(candidate.lanes.lanes.size()) * candidate.lanes.per_lane;
  for (const bool backward_first : {true, false}) {
    for (const bool split : {true, false}) {
      if (letters * candidate.lanes.ranks() > kMostGreedySteps) continue;
      add(greedy_order(candidate.lanes, {.backward_first = backward_first, .split = split}));
    }
  }
  if (starts.empty()) add(sequential_order(candidate.lanes));
  return starts;
}

}  // namespace dualpipe::search
