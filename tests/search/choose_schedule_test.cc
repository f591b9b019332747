#include "plugin/search/choose_schedule.h"

#include <gmock/gmock.h>

#include <limits>
#include <sstream>

#include "plugin/analysis/memory.h"
#include "plugin/analysis/simulate.h"
#include "plugin/analysis/validate.h"
#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"
#include "tests/schedule/refusal.h"
#include "tests/search/best_named.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

AutoRequest request_for(int ranks, int num_microbatches, const char* cost, std::vector<PlacementKind> placements = {}) {
  AutoRequest request;
  request.pipeline_model_parallel_size = ranks;
  request.num_microbatches = num_microbatches;
  request.cost = parse_cost(cost);
  request.placements = std::move(placements);
  request.evaluations = 20'000;
  return request;
}

std::string print(const Schedule& schedule) {
  std::ostringstream text;
  print_rows(text, schedule.rows);
  return text.str();
}

std::string refusal_of(const AutoRequest& request) {
  return dualpipe::refusal_of([&] { choose_schedule(request); });
}

// What the choice says of itself is so, by the simulator and the validator.
void expect_honest(const AutoRequest& request, const AutoChoice& choice) {
  const Timeline timeline = simulate(choice.schedule, choice.cost);
  EXPECT_EQ(choice.makespan, timeline.makespan());
  EXPECT_EQ(choice.peak_activations,
            *std::max_element(timeline.peak_activations.begin(), timeline.peak_activations.end()));
  EXPECT_TRUE(validate(choice.schedule).empty());
  EXPECT_TRUE(validate(lower(choice.schedule)).empty());
  EXPECT_GE(choice.makespan, choice.bound * (1 - 1e-12));
  const std::optional<double> named = best_named_makespan(request);
  ASSERT_EQ(choice.best_named.has_value(), named.has_value());
  if (!named) return;
  EXPECT_NEAR(choice.best_named->makespan, *named, 1e-9 * *named);
  EXPECT_LE(choice.makespan, *named * (1 + 1e-12));
}

struct TableRow {
  const char* cost;
  double dualpipev;
  double reached;  // What a plain annealing search of two minutes found.
  std::int64_t evaluations;
};

// A V of 4 ranks, 10 micro-batches, at most 9 live.
TEST(ChooseSchedule, BeatsDualpipevAsMuchAsPlainAnnealing) {
  const TableRow rows[] = {
      {"overlapped=3", 66, 63, 200'000},
      {"overlapped=3,latency=0.25", 71, 64.25, 1'500'000},
      {"overlapped=2.25", 55.5, 55.25, 1'500'000},
      {"overlapped=2.25,latency=0.25", 60.5, 59, 1'500'000},
  };
  for (const TableRow& row : rows) {
    AutoRequest request = request_for(4, 10, row.cost, {PlacementKind::kVee});
    request.max_activations = 9;
    request.evaluations = row.evaluations;
    const AutoChoice choice = choose_schedule(request);
    expect_honest(request, choice);
    EXPECT_EQ(choice.best_named->schedule, "dualpipev");
    EXPECT_EQ(choice.best_named->makespan, row.dualpipev) << row.cost;
    EXPECT_LE(choice.makespan, row.reached) << row.cost;
    EXPECT_LE(choice.peak_activations, 9);
  }
}

TEST(ChooseSchedule, GainsAtOtherSizesAndCostsToo) {
  const struct {
    int num_microbatches;
    const char* cost;
  } cases[] = {
      {11, "overlapped=3,latency=0.25"},
      {12, "overlapped=3,latency=0.25"},
      {14, "overlapped=3,latency=0.25"},
      {10, "forward=1,backward_input=1.5,backward_weight=0.5,overlapped=3"},
      {10, "forward=1.5,backward_input=1,backward_weight=0.5,overlapped=2.5,latency=0.25"},
      {10, "forward=0.5,backward_input=1,backward_weight=1.5,overlapped=3,latency=0.25"},
  };
  for (const auto& test : cases) {
    AutoRequest request = request_for(4, test.num_microbatches, test.cost, {PlacementKind::kVee});
    request.max_activations = 9;
    request.evaluations = 200'000;
    const AutoChoice choice = choose_schedule(request);
    expect_honest(request, choice);
    EXPECT_LT(choice.makespan, choice.best_named->makespan) << test.num_microbatches << " " << test.cost;
  }
}

TEST(ChooseSchedule, DependsOnTheRequestAlone) {
  AutoRequest request = request_for(4, 8, "overlapped=2.5,latency=0.25");
  const AutoChoice first = choose_schedule(request);
  request.threads = 1;
  const AutoChoice second = choose_schedule(request);
  EXPECT_EQ(print(second.schedule), print(first.schedule));
  EXPECT_EQ(second.evaluations, first.evaluations);
  EXPECT_EQ(second.reason, first.reason);
  int reports = 0;
  request.on_progress = [&](const SearchProgress& progress) {
    ++reports;
    EXPECT_TRUE(progress.done >= 0 && progress.done <= 1);
    EXPECT_GE(progress.makespan, 0);
  };
  choose_schedule(request);
  EXPECT_GT(reports, 0);
}

TEST(ChooseSchedule, IsAFileThatReadsBack) {
  for (const PlacementKind kind : {PlacementKind::kLoop, PlacementKind::kVee, PlacementKind::kBidirectional}) {
    const AutoRequest request = request_for(4, 8, "overlapped=2,latency=0.5", {kind});
    const AutoChoice choice = choose_schedule(request);
    expect_honest(request, choice);
    const Schedule read = parse_schedule(print(choice.schedule), "auto.csv");
    EXPECT_EQ(read.placement, choice.schedule.placement) << to_string(kind);
    EXPECT_EQ(read.num_microbatches, 8);
    EXPECT_EQ(read.rows, choice.schedule.rows);
  }
}

// The same model: a stage of the V is half as long as one of the loop.
TEST(ChooseSchedule, ComparesPlacementsOnOneModel) {
  AutoRequest request = request_for(4, 8, "overlapped=2.5");
  request.evaluations = 0;
  const AutoChoice all = choose_schedule(request);
  EXPECT_EQ(all.best_named->schedule, "dualpipe");
  EXPECT_EQ(all.best_named->makespan, 24);  // zb1p takes 27, 1f1b 33.
  request.placements = {PlacementKind::kLoop, PlacementKind::kVee};
  const AutoChoice one_copy = choose_schedule(request);
  EXPECT_EQ(one_copy.best_named->schedule, "dualpipev");
  EXPECT_EQ(one_copy.best_named->makespan, 24.5);
  EXPECT_EQ(one_copy.cost.of(0), (StageCost{0.5, 0.5, 0.5, 1.25}));
  request.placements = {PlacementKind::kVee};  // Costs are those of its own stages.
  EXPECT_EQ(choose_schedule(request).best_named->makespan, 49);
}

TEST(ChooseSchedule, SaysWhy) {
  AutoRequest request = request_for(4, 10, "overlapped=3", {PlacementKind::kVee});
  request.max_activations = 9;
  request.evaluations = 0;
  EXPECT_EQ(choose_schedule(request).reason,
            "placement v, makespan 66, at most 9 live activations per rank, each of 1/8 of the model: the best named "
            "schedule, dualpipev, takes 66 with at most 9 live activations per rank, and nothing faster was found; 5 "
            "orders were looked at, and none "
            "can be faster than 63");
  request.evaluations = 200'000;
  EXPECT_THAT(choose_schedule(request).reason,
              HasSubstr("with at most 9 live activations per rank; this one takes 4.5 % less; "));
  request.max_activations = 4;
  EXPECT_THAT(choose_schedule(request).reason, HasSubstr("no named schedule is valid for these sizes and fits; "));
}

TEST(ChooseSchedule, KeepsMemoryLimits) {
  AutoRequest request = request_for(4, 8, "overlapped=3");
  request.bytes.assign(8, {1e9, 0, 0, 0.5e9});  // 8 GB of parameters, 0.5 GB per live micro-batch of an eighth.
  double before = 0;
  for (const double limit : {100.0, 8.0, 5.0, 3.0}) {
    request.memory_limit_gb = limit;
    const AutoChoice choice = choose_schedule(request);
    expect_honest(request, choice);
    double most = 0;
    for (const RankMemory& rank : memory_of(choice.schedule, choice.bytes)) most = std::max(most, rank.total());
    EXPECT_LE(most, limit * 1e9);
    EXPECT_EQ(*choice.peak_memory_gb, most / 1e9);
    EXPECT_GE(choice.makespan, before) << limit;
    before = choice.makespan;
  }
  EXPECT_EQ(choose_schedule(request).peak_memory_gb, 3);  // Parameters of two stages, one micro-batch.
}

TEST(ChooseSchedule, SaysTheLeastThatWouldFit) {
  AutoRequest request = request_for(4, 8, "overlapped=3");
  request.bytes.assign(8, {1e9, 0, 0, 0.5e9});
  request.memory_limit_gb = 2;
  EXPECT_EQ(refusal_of(request),
            "[auto] no order fits memory_limit_gb = 2 on 4 ranks; the least that would: memory_limit_gb = 3 for loop, "
            "memory_limit_gb = 3 for loop with 2 chunks per rank, memory_limit_gb = 3 for v, memory_limit_gb = 6 for "
            "bidirectional");
  AutoRequest activations = request_for(4, 8, "overlapped=3", {PlacementKind::kVee});
  activations.max_activations = 1;
  EXPECT_EQ(refusal_of(activations),
            "[auto] no order fits max_activations = 1 on 4 ranks; the least that would: max_activations = 2 for v");
  activations.placements = {PlacementKind::kBidirectional};
  EXPECT_EQ(refusal_of(activations),
            "[auto] no order fits max_activations = 1 on 4 ranks; the least that would: max_activations = 2 for "
            "bidirectional");
  for (const auto& [kind, least] : {std::pair(PlacementKind::kLoop, 1), std::pair(PlacementKind::kVee, 2),
                                    std::pair(PlacementKind::kBidirectional, 2)}) {
    AutoRequest tight = request_for(4, 8, "overlapped=3", {kind});
    tight.max_activations = least;
    tight.virtual_pipeline_model_parallel_size = 1;
    EXPECT_EQ(choose_schedule(tight).peak_activations, least) << to_string(kind);
  }
}

// A placement that was not chosen may have faster orders than the bound of the one that was.
TEST(ChooseSchedule, BoundIsThatOfEveryPlacement) {
  const AutoRequest all = request_for(4, 8, "overlapped=3");
  double least = std::numeric_limits<double>::infinity();
  for (const PlacementKind kind : {PlacementKind::kLoop, PlacementKind::kVee, PlacementKind::kBidirectional}) {
    AutoRequest one = all;
    one.placements = {kind};
    one.cost_stages = 4;
    const AutoChoice choice = choose_schedule(one);
    least = std::min(least, choice.bound);
    EXPECT_GE(choice.makespan, choose_schedule(all).bound) << to_string(kind);
  }
  EXPECT_EQ(choose_schedule(all).bound, least);
}

TEST(ChooseSchedule, CountsActivationsInPartsOfTheModel) {
  AutoRequest request = request_for(4, 8, "overlapped=3");
  request.max_activations = 4;
  const AutoChoice whole = choose_schedule(request);
  request.cost.per_stage.assign(8, {0.5, 0.5, 0.5, 1.5});  // The same model from a finer file.
  const AutoChoice fine = choose_schedule(request);
  EXPECT_EQ(print(fine.schedule), print(whole.schedule));
  EXPECT_EQ(fine.reason, whole.reason);
  EXPECT_THAT(fine.reason, HasSubstr(" live activations per rank, each of 1/4 of the model: "));
}

TEST(ChooseSchedule, RefusesCostsThatCannotBeDividedFirst) {
  AutoRequest request = request_for(3, 6, "overlapped=3");
  request.cost.per_stage.assign(4, {});
  EXPECT_EQ(refusal_of(request),
            "[auto] the number of stages that costs are of must divide a placement's or be a multiple of it (3 for "
            "loop, 6 for loop with 2 chunks per rank, 6 for v), got 4; for example 3");
  request.cost.per_stage.assign(2, {});  // Of 6 stages alone.
  EXPECT_EQ(choose_schedule(request).schedule.placement.stages(), 6);
}

TEST(ChooseSchedule, TakesAnyBudget) {
  AutoRequest request = request_for(1, 1, "overlapped=3");
  const double makespan = choose_schedule(request).makespan;
  request.evaluations = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(choose_schedule(request).makespan, makespan);
  request.evaluations.reset();
  request.time_budget_s = 1e300;
  EXPECT_EQ(choose_schedule(request).makespan, makespan);
}

TEST(ChooseSchedule, RefusesWhatIsWrongInItself) {
  AutoRequest request = request_for(4, 8, "overlapped=3");
  request.memory_limit_gb = 80;
  EXPECT_EQ(refusal_of(request),
            "[auto] memory_limit_gb needs the bytes of each stage, which a cost file of 'dualpipe profile' holds, got "
            "none; max_activations needs no bytes");
  request.bytes.assign(4, {1, 0, 0, 1});
  request.memory_limit_gb = 0;
  EXPECT_EQ(refusal_of(request), "[auto] memory_limit_gb must be a finite number above 0, such as 80, got 0");
  request = request_for(3, 8, "overlapped=3", {PlacementKind::kBidirectional});
  EXPECT_EQ(refusal_of(request),
            "[auto] the bidirectional placement needs an even number of ranks and of micro-batches, got 3 and 8; the v "
            "placement takes any");
  request = request_for(0, 8, "overlapped=3");
  EXPECT_EQ(refusal_of(request), "[auto] pipeline_model_parallel_size must be at least 1, got 0");
  request = request_for(4, 8, "overlapped=3");
  request.max_activations = 0;
  EXPECT_EQ(refusal_of(request), "[auto] max_activations must be at least 1, got 0");
  request = request_for(4, 8, "overlapped=3");
  request.cost.per_stage.assign(8, {});
  request.cost_stages = 4;
  EXPECT_EQ(refusal_of(request), "[auto] cost_stages must be the number of per_stage costs = 8, got 4");
  request = request_for(4, 8, "overlapped=3");
  request.cost.uniform.forward = -1;
  EXPECT_EQ(refusal_of(request), "[auto] the cost of a forward must be a finite number of at least 0, got -1");
  request.cost.uniform.forward = 1e308;
  EXPECT_EQ(refusal_of(request), "[auto] the cost of a forward must be at most 1e15, got more");
  EXPECT_THROW(parse_placement_kind("x", "w"), ScheduleError);
  EXPECT_EQ(parse_placement_kind("x", "v"), PlacementKind::kVee);
}

TEST(ChooseSchedule, TakesTheSmallestAndOddSizes) {
  for (const auto& [ranks, micro_batches] : {std::pair(1, 1), std::pair(1, 5), std::pair(2, 1), std::pair(5, 3)}) {
    for (const char* cost : {"overlapped=2,latency=0.5", "forward=0,backward_input=0,backward_weight=0,overlapped=0"}) {
      const AutoRequest request = request_for(ranks, micro_batches, cost);
      expect_honest(request, choose_schedule(request));
    }
  }
}

}  // namespace
}  // namespace dualpipe
