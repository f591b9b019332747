// Stages that run phase by phase beside the whole model in one process, and merged pairs beside the sequence.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "plugin/runtime/nn/linear.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"
#include "tests/runtime/comparison.h"
#include "tests/runtime/phased_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using Options = std::function<PhasedStageOptions(int stage)>;

Comparison phased_comparison(const std::string& schedule, int ranks, int num_microbatches, Options options = {}) {
  Comparison comparison = mlp_comparison(schedule, ranks, num_microbatches);
  comparison.make = [options](int stage, int) {
    return phased_stage(stage, options ? options(stage) : PhasedStageOptions{});
  };
  return comparison;
}

PhasedStageOptions uneven(int stage) {
  PhasedStageOptions options;
  if (stage % 2 == 1) options.layers = {LayerKind::kDense, LayerKind::kMoe, LayerKind::kMoe};
  if (stage % 3 == 2) options.layers = {LayerKind::kDense};
  options.costs = {1, 2.5, 0.25, 3};
  return options;
}

PhasedStageOptions recomputing(int) {
  PhasedStageOptions options;
  options.recompute = true;
  return options;
}

int pairs_of(const Schedule& plan, int rank) {
  const Row& row = plan.rows[rank];
  return static_cast<int>(std::count_if(row.begin(), row.end(), [](const Action& a) { return a.is_overlap(); }));
}

struct Case {
  std::string name;
  Options options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class PhasedStages : public testing::TestWithParam<Case> {};

TEST_P(PhasedStages, GiveTheGradientsOfTheWholeModel) {
  for (const std::string& schedule : all_schedules()) {
    for (bool overlap : {true, false}) {
      Comparison comparison = phased_comparison(schedule, 4, 8, GetParam().options);
      comparison.options.overlap_phases = overlap;
      comparison.check = [&](Rank& rank, Pipeline&, const StepResult& result) {
        const int pairs = pairs_of(builtin_registry().make(schedule, {4, 8, 2}), rank.index);
        EXPECT_EQ(result.statistics.pairs_by_phases, overlap ? pairs : 0);
        EXPECT_EQ(result.statistics.overlapped_pairs, overlap ? pairs : 0);
        if (pairs > 0 && !overlap) {
          EXPECT_EQ(result.statistics.sequential_pairs.at("overlap_phases is false"), pairs);
        }
      };
      expect_like_whole_model(comparison);
    }
  }
}

TEST_P(PhasedStages, RunWithVariableShapesAndDeferredWeightGradients) {
  for (const std::string schedule : {"zb1p", "dualpipe", "dualpipev"}) {
    Comparison comparison = phased_comparison(schedule, 2, 6, GetParam().options);
    comparison.options.variable_seq_lengths = true;
    comparison.options.defer_tail_weight_gradients = true;
    comparison.options.slots = 3;
    for (int k = 0; k < 6; ++k) {
      comparison.inputs[k] = {comparison.inputs[k][0].repeat({2, 1}).narrow(0, 0, 1 + (5 * k) % 7)};
      comparison.labels[k] = {comparison.labels[k][0].repeat({2, 1}).narrow(0, 0, 1 + (5 * k) % 7)};
    }
    comparison.steps = 2;
    expect_like_whole_model(comparison);
  }
}

TEST_P(PhasedStages, RunOverGloo) {
  Comparison comparison = phased_comparison("dualpipe", 4, 8, GetParam().options);
  comparison.over_gloo = true;
  expect_like_whole_model(comparison);
}

// To the bit: the merge changes when, never what.
TEST_P(PhasedStages, GiveTheSameBitsOverlappedAndInSequence) {
  for (const std::string schedule : {"dualpipe", "dualpipev"}) {
    Comparison comparison = phased_comparison(schedule, 4, 10, GetParam().options);
    std::mutex mutex;
    std::map<std::string, std::vector<at::Tensor>> results;
    for (bool overlap : {true, false}) {
      comparison.options.overlap_phases = overlap;
      run_on_ranks(comparison, [&](Rank& rank) {
        Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
        StepResult result = train_once(comparison, pipeline);
        const std::lock_guard lock(mutex);
        for (const at::Tensor& loss : result.losses) results[fmt::format("{} losses", rank.index)].push_back(loss);
        for (const StageParameter& parameter : pipeline.parameters()) {
          results[fmt::format("{} {}", rank.index, parameter.name)].push_back(parameter.parameter.grad());
        }
      });
    }
    for (const auto& [name, values] : results) {
      const std::size_t half = values.size() / 2;
      for (std::size_t i = 0; i < half; ++i) EXPECT_TRUE(at::equal(values[i], values[half + i])) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PhasedStages,
                         testing::Values(Case{"equal", {}}, Case{"uneven", uneven}, Case{"recomputing", recomputing}),
                         [](const auto& info) { return info.param.name; });

// The last stage ends in an exchange, behind which the loss has a phase of its own; others hand two tensors over.
TEST(Phases, MayEndInAnExchange) {
  for (const std::string& schedule : all_schedules()) {
    Comparison comparison = phased_comparison(schedule, 2, 4, [](int) {
      PhasedStageOptions options;
      options.layers = {LayerKind::kMoe};
      options.ends_in_combine = true;
      return options;
    });
    comparison.criterion = Criterion([](const TensorList& outputs, const TensorList& labels) {
      return (outputs.at(0) + outputs.at(1) - labels.at(0)).square().mean();
    });
    expect_like_whole_model(comparison);
  }
}

// Adds how many rows there are; nothing comes back.
class RowCount final : public PendingExchange {
 public:
  explicit RowCount(TensorList inputs) : inputs_(std::move(inputs)) {}
  TensorList wait() override {
    TensorList result = inputs_;
    result.push_back(at::full({1}, inputs_[0].size(0), at::kLong));
    return result;
  }

 private:
  TensorList inputs_;
};

Phase row_count_phase() {
  Phase phase;
  phase.spec = {.name = "rows", .kind = PhaseKind::kCommunication, .has_backward = false};
  phase.exchange = [](const TensorList& t, PhaseContext&) { return std::make_unique<RowCount>(t); };
  return phase;
}

// One weight in two phases, by a layer that puts its own closures into the store; an exchange comes first.
TEST(Phases, MayShareWeightsAndBeginWithAnExchange) {
  for (const std::string& schedule : all_schedules()) {
    for (bool recompute : {false, true}) {
      Comparison comparison = phased_comparison(schedule, 2, 4);
      comparison.make = [recompute](int stage, int) {
        const at::Tensor w = weight({8, 8}, stage);
        const auto half = [w](const at::Tensor& x) { return at::tanh(nn::linear(x, w, {})); };
        Phase first;
        first.spec.name = "first";
        first.recompute = recompute;
        first.compute = [half](const TensorList& t, PhaseContext&) {
          return TensorList{half(t.at(0)) * t.at(1), t.at(0)};
        };
        Phase second = first;
        second.spec.name = "second";
        second.compute = [half](const TensorList& t, PhaseContext&) {
          return TensorList{half(t.at(0)) + t.at(1) / t.at(2)};
        };
        const auto whole = [half](const TensorList& t) {
          const at::Tensor rows = at::full({1}, t.at(0).size(0), at::kLong);
          return TensorList{half(half(t[0]) * rows) + t[0] / rows};
        };
        return function_stage({{"w", w}}, whole, {}, {row_count_phase(), first, row_count_phase(), second});
      };
      expect_like_whole_model(comparison);
    }
  }
}

TEST(Phases, OfOneModuleAloneLeaveThePairInSequence) {
  Comparison comparison = phased_comparison("dualpipe", 2, 4, [](int stage) {
    PhasedStageOptions options;
    options.phased = stage == 0;
    return options;
  });
  comparison.check = [](Rank& rank, Pipeline& pipeline, const StepResult& result) {
    const int pairs = pairs_of(builtin_registry().make("dualpipe", {2, 4}), rank.index);
    EXPECT_EQ(result.statistics.overlap_summary(),
              fmt::format("0 of {0} pairs overlapped; {0} in sequence: stage 1 has no phases", pairs));
    EXPECT_TRUE(pipeline.pair_programs().empty());
  };
  expect_like_whole_model(comparison);
}

// --- what ran

struct Event {
  double time;
  PairStep step;
};

bool is_of(const PhaseSpan& span, const Action& pair) {
  const Op& op = span.part == PhasePart::kForward ? pair.op : *pair.paired;
  return span.stage == op.stage && span.micro_batch == op.micro_batch;
}

std::vector<PhaseSpan> phases_of(const Action& pair, std::vector<PhaseSpan> spans) {
  std::erase_if(spans, [&](const PhaseSpan& span) { return !is_of(span, pair); });
  return spans;
}

// In the order of time, as steps of a program.
std::vector<PairStep> steps_of(const std::vector<PhaseSpan>& spans) {
  std::vector<Event> events;
  for (const PhaseSpan& span : spans) {
    const auto kind = span.communication ? PairStepKind::kPost : PairStepKind::kRun;
    events.push_back({span.start, {kind, span.part, span.phase}});
    if (span.communication) events.push_back({span.end - span.waited, {PairStepKind::kWait, span.part, span.phase}});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
  std::vector<PairStep> steps;
  for (const Event& event : events) steps.push_back(event.step);
  return steps;
}

std::vector<PairStep> own_steps(const PairProgram& program) {
  std::vector<PairStep> steps;
  for (const PairStep& step : program.steps) {
    const bool own =
        step.kind == PairStepKind::kRun || step.kind == PairStepKind::kPost || step.kind == PairStepKind::kWait;
    if (own) steps.push_back(step);
  }
  return steps;
}

TEST(Phases, RunInTheOrderOfTheMergedProgram) {
  Comparison comparison = phased_comparison("dualpipe", 4, 8, uneven);
  run_on_ranks(comparison, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    const StepStatistics statistics = train_once(comparison, pipeline).statistics;
    EXPECT_EQ(pipeline.pair_programs().size(), 2u);
    for (const Span& span : statistics.spans) {
      if (!span.action.is_overlap()) continue;
      const PairProgram& program = pipeline.pair_programs().at({span.action.op.stage, span.action.paired->stage});
      EXPECT_EQ(why_invalid(program), "");
      // The first compute may begin while the pair waits for what else it needs.
      EXPECT_EQ(steps_of(phases_of(span.action, statistics.phases)), own_steps(program))
          << to_string(span.action) << "\n"
          << print(program);
    }
  });
}

// When the first phase ran that has the part in the pair's backward.
double first_start(const Action& pair, PhasePart part, int phase, const std::vector<PhaseSpan>& spans) {
  const std::vector<PhaseSpan> own = phases_of(pair, spans);
  const auto found = std::find_if(own.begin(), own.end(),
                                  [&](const PhaseSpan& span) { return span.part == part && span.phase == phase; });
  EXPECT_NE(found, own.end()) << to_string(pair);
  return found == own.end() ? -1 : found->start;
}

// On one rank of DualPipeV the gradients of a pair in stage 0 are there, since stage 1 has just run; those of a pair in
// stage 1 wait for the loss, which the closing of the pair before computes.
TEST(Phases, OfTheClosingRunBehindTheFirstExchangeOfTheNextPair) {
  Comparison comparison = phased_comparison("dualpipev", 1, 6, [](int) {
    PhasedStageOptions options;
    options.ends_in_combine = true;
    return options;
  });
  comparison.criterion =
      Criterion([](const TensorList& outputs, const TensorList&) { return (outputs.at(0) + outputs.at(1)).sum(); });
  const int combine = 9;          // The last phase of two MoE layers.
  const int first_attention = 0;  // Whose W comes last.
  run_on_ranks(comparison, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    const StepStatistics step = train_once(comparison, pipeline).statistics;
    int pairs = 0;
    for (std::size_t i = 1; i < step.spans.size(); ++i) {
      const Action &pair = step.spans[i - 1].action, &next = step.spans[i].action;
      if (!pair.is_overlap() || !next.is_overlap()) continue;
      const double closed = first_start(pair, PhasePart::kWeight, first_attention, step.phases);
      const double opened = first_start(next, PhasePart::kInput, combine, step.phases);
      EXPECT_EQ(opened < closed, next.paired->stage == 0) << to_string(pair) << " " << to_string(next);
      ++pairs;
    }
    EXPECT_EQ(pairs, 8);
  });
}

// B outside a pair: each W behind the exchange that follows its I, in the same order wherever the phases are equal.
TEST(Phases, OfABackwardAloneComputeBehindItsExchanges) {
  std::vector<std::string> steps;
  Comparison comparison = phased_comparison("1f1b", 1, 1);
  comparison.check = [&](Rank&, Pipeline&, const StepResult& result) {
    for (const PairStep& step : steps_of(result.statistics.phases)) {
      if (step.part == PhasePart::kForward) continue;
      const char* kind = step.kind == PairStepKind::kPost ? "post" : step.kind == PairStepKind::kWait ? "wait" : "run";
      steps.push_back(fmt::format("{} {}{}", kind, step.phase, step.part == PhasePart::kWeight ? "W" : ""));
    }
  };
  expect_like_whole_model(comparison);
  // 0 attention, 1 sizes, 2 dispatch, 3 mlp, 4 combine, 5 to 9 likewise, 10 sum.
  EXPECT_THAT(steps, testing::ElementsAre("run 10", "post 9", "run 10W", "wait 9", "run 8", "post 7", "run 8W",
                                          "wait 7", "run 5", "post 4", "run 5W", "wait 4", "run 3", "post 2", "run 3W",
                                          "wait 2", "run 0"));
}

TEST(Phases, AreCountedByTheStatistics) {
  Comparison comparison = phased_comparison("zb1p", 2, 4, recomputing);
  comparison.check = [](Rank&, Pipeline&, const StepResult& result) {
    const StepStatistics& statistics = result.statistics;
    // Per micro-batch: two layers with attention and MLP, and the sum, all once again. None of it in W.
    EXPECT_EQ(statistics.recomputed_phases, 4 * 5);
    std::map<std::pair<bool, PhasePart>, int> parts;
    double waited = 0;
    for (const PhaseSpan& span : statistics.phases) {
      ++parts[{span.communication, span.part}];
      waited += span.waited;
      EXPECT_LE(span.start, span.end);
      EXPECT_LE(span.waited, span.end - span.start);
    }
    EXPECT_EQ((parts[{false, PhasePart::kForward}]), 4 * 5);
    EXPECT_EQ((parts[{false, PhasePart::kInput}]), 4 * 5);
    EXPECT_EQ((parts[{true, PhasePart::kForward}]), 4 * 6);
    EXPECT_EQ((parts[{true, PhasePart::kInput}]), 4 * 4);
    EXPECT_DOUBLE_EQ(statistics.exchange_wait_seconds, waited);
    EXPECT_GE(statistics.exchange_seconds, waited);
  };
  expect_like_whole_model(comparison);
}

// Names of what ran on this thread.
thread_local std::vector<std::string>* recorded_names = nullptr;

std::unique_ptr<at::ObserverContext> record_name(const at::RecordFunction& function) {
  if (recorded_names) recorded_names->push_back(function.name());
  return nullptr;
}

TEST(Phases, ShowInProfilers) {
  Comparison comparison = phased_comparison("dualpipev", 1, 4, [](int) {
    PhasedStageOptions options;
    options.layers = {LayerKind::kMoe};
    return options;
  });
  run_on_ranks(comparison, [&](Rank& rank) {
    Pipeline pipeline = make_pipeline(comparison, rank, stages_of_rank(comparison, rank.index));
    std::vector<std::string> names;
    recorded_names = &names;
    const at::CallbackHandle handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(record_name).scopes({at::RecordScope::USER_SCOPE}));
    train_once(comparison, pipeline);
    at::removeCallback(handle);
    recorded_names = nullptr;
    for (const std::string name :
         {"dualpipe::0F0", "dualpipe::0F0 0.attention", "dualpipe::0F0 0.dispatch post",
          "dualpipe::0F0 0.dispatch wait", "dualpipe::1B0 0.attention", "dualpipe::1I1 0.mlp", "dualpipe::1W1 0.mlp"}) {
      EXPECT_THAT(names, testing::Contains(name));
    }
  });
}

// --- micro-batches

class NumberedStage final : public StageModule {
 public:
  NumberedStage(std::shared_ptr<StageModule> inner, std::vector<std::string>* log, bool phased)
      : inner_(register_module("inner", std::move(inner))), log_(log), phased_(phased) {}

  void begin_micro_batch(int micro_batch) override { log_->push_back(fmt::format("begin {}", micro_batch)); }
  TensorList forward(const TensorList& inputs) override {
    log_->push_back("forward");
    return inner_->forward(inputs);
  }
  std::vector<Phase> phases() override {
    if (!phased_) return {};
    Phase phase;
    phase.spec.name = "all";
    phase.compute = [this](const TensorList& inputs, PhaseContext& context) {
      log_->push_back(fmt::format("phase {}", context.micro_batch));
      return inner_->forward(inputs);
    };
    return {phase};
  }

 private:
  std::shared_ptr<StageModule> inner_;
  std::vector<std::string>* log_;
  bool phased_;
};

TEST(MicroBatchNumbers, ReachForwardAndPhases) {
  const Comparison comparison = mlp_comparison("1f1b", 1, 2);
  for (bool phased : {false, true}) {
    run_on_ranks(comparison, [&](Rank& rank) {
      std::vector<std::string> log;
      Pipeline pipeline =
          make_pipeline(comparison, rank, {std::make_shared<NumberedStage>(mlp_stage(0), &log, phased)});
      train_once(comparison, pipeline);
      pipeline.evaluate(comparison.inputs, MicroBatches(2));
      const std::vector<std::string> plain{"begin 0", "forward", "begin 1", "forward"};
      std::vector<std::string> wanted = phased ? std::vector<std::string>{"phase 0", "phase 1"} : plain;
      wanted.insert(wanted.end(), plain.begin(), plain.end());
      EXPECT_EQ(log, wanted);
    });
  }
}

}  // namespace
}  // namespace dualpipe
