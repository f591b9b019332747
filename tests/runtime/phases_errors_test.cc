// Phases that are none, and exchanges that fail.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/runtime/comparison.h"
#include "tests/runtime/phased_stage.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using testing::HasSubstr;

Phase computing(const std::string& name) {
  Phase phase;
  phase.spec.name = name;
  phase.compute = [](const TensorList& inputs, PhaseContext&) { return inputs; };
  return phase;
}

// Gives `count` tensors, forward and back.
class Copies final : public PendingExchange {
 public:
  Copies(const TensorList& tensors, std::size_t count) : result_(count, tensors.at(0)) {}
  TensorList wait() override { return result_; }

 private:
  TensorList result_;
};

Phase exchanging(const std::string& name, std::size_t forward = 1, std::size_t back = 1) {
  Phase phase;
  phase.spec.name = name;
  phase.spec.kind = PhaseKind::kCommunication;
  phase.exchange = [=](const TensorList& t, PhaseContext&) { return std::make_unique<Copies>(t, forward); };
  phase.exchange_back = [=](const TensorList& t, PhaseContext&) { return std::make_unique<Copies>(t, back); };
  return phase;
}

std::shared_ptr<StageModule> stage_with(std::vector<Phase> phases) {
  const at::Tensor w = weight({8, 8}, 1);
  return function_stage(
      {{"w", w}}, [w](const TensorList& t) { return TensorList{at::linear(t.at(0), w)}; }, {}, std::move(phases));
}

Phase changed(Phase phase, const std::function<void(Phase&)>& change) {
  change(phase);
  return phase;
}

TEST(BadPhases, AreRefusedOnEveryRankBeforeTheFirstMessage) {
  struct Case {
    Phase phase;
    std::string message;
  };
  const std::vector<Case> cases{
      {changed(computing("a"), [](Phase& p) { p.compute = {}; }),
       "[phases] phase \"a\" of stage 1 must have `compute` and no `exchange`, since it is kCompute"},
      {changed(computing("b"), [](Phase& p) { p.spec.kind = PhaseKind::kCommunication; }),
       "[phases] phase \"b\" of stage 1 must have `exchange` and no `compute`, since it is kCommunication"},
      {changed(exchanging("b"), [](Phase& p) { p.exchange = {}; }),
       "[phases] phase \"b\" of stage 1 must have `exchange` and no `compute`, since it is kCommunication"},
      {changed(exchanging("b"), [](Phase& p) { p.compute = computing("").compute; }),
       "[phases] phase \"b\" of stage 1 must have `exchange` and no `compute`, since it is kCommunication"},
      {changed(computing("b"), [](Phase& p) { p.exchange = exchanging("").exchange; }),
       "[phases] phase \"b\" of stage 1 must have `compute` and no `exchange`, since it is kCompute"},
      {changed(computing("c"), [](Phase& p) { p.spec.has_backward = false; }),
       "[phases] phase \"c\" of stage 1 must have no `exchange_back` and has_backward = true, since it is kCompute"},
      {changed(exchanging("d"), [](Phase& p) { p.recompute = true; }),
       "[phases] phase \"d\" of stage 1 must not be computed again, since it is kCommunication"},
      {changed(exchanging("e"), [](Phase& p) { p.exchange_back = {}; }),
       "[phases] phase \"e\" of stage 1 must have `exchange_back`, or has_backward = false"},
      {changed(exchanging("f"), [](Phase& p) { p.spec.has_backward = false; }),
       "[phases] phase \"f\" of stage 1 must have no `exchange_back`, since has_backward is false"}};
  const Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  for (const Case& c : cases) {
    const auto errors = errors_of_ranks(2, [&](Rank& rank) {
      const auto bad = stage_with({computing("first"), c.phase});
      const auto good = stage_with({computing("first")});
      make_pipeline(comparison, rank, rank.index == 0 ? std::vector{good, bad} : std::vector{bad, good});
    });
    for (const auto& error : errors) EXPECT_THAT(error.value_or(""), HasSubstr(c.message));
  }
}

Phase declaring(Phase phase, std::optional<TensorForms> takes, std::optional<TensorForms> gives) {
  phase.takes = std::move(takes);
  phase.gives = std::move(gives);
  return phase;
}

// Of a dtype and sizes, none of which need be known.
TensorForm form(std::optional<at::ScalarType> dtype, std::vector<std::optional<std::int64_t>> sizes) {
  return {dtype, std::move(sizes)};
}

// Between "give" and "take" of stage 1; the phases around them say nothing.
void expect_chain(std::optional<TensorForms> gives, std::optional<TensorForms> takes, const std::string& message) {
  const Comparison comparison = mlp_comparison("dualpipe", 2, 4);
  const auto errors = errors_of_ranks(2, [&](Rank& rank) {
    const auto stage = [&] {
      return stage_with({computing("first"), declaring(exchanging("give"), TensorForms{}, gives),
                         declaring(computing("take"), takes, TensorForms{}), computing("last")});
    };
    const auto good = stage_with({computing("first")});
    make_pipeline(comparison, rank, rank.index == 0 ? std::vector{good, stage()} : std::vector{stage(), good});
  });
  for (const auto& error : errors) {
    if (message.empty()) {
      EXPECT_EQ(error.value_or(""), "");
    } else {
      EXPECT_THAT(error.value_or(""), HasSubstr("[phases] phase \"take\" of stage 1 must take what phase \"give\" "
                                                "before it gives, " +
                                                message));
    }
  }
}

TEST(PhasesThatDoNotChain, AreRefusedOnEveryRankBeforeTheFirstMessage) {
  const TensorForm rows = form(at::kDouble, {std::nullopt, 8});
  struct Case {
    std::optional<TensorForms> gives;
    std::optional<TensorForms> takes;
    std::string message;
  };
  const std::vector<Case> cases{
      // By number, dtype, size, number of dimensions.
      {TensorForms{rows, rows}, TensorForms{rows}, "float64[?, 8], float64[?, 8], got float64[?, 8]"},
      {TensorForms{}, TensorForms{{}}, "nothing, got ?"},
      {TensorForms{rows}, TensorForms{form(at::kFloat, {4, 8})}, "float64[?, 8], got float32[4, 8]"},
      {TensorForms{rows}, TensorForms{form({}, {4, 12})}, "float64[?, 8], got ?[4, 12]"},
      {TensorForms{{at::kLong, {}}, rows}, TensorForms{{}, form({}, {8})}, "int64[...], float64[?, 8], got ?, ?[8]"},
      {TensorForms{form(at::kLong, {})}, TensorForms{form({}, {1})}, "int64[], got ?[1]"},
      // What is not known agrees with everything.
      {std::nullopt, TensorForms{rows}, ""},
      {TensorForms{rows, rows}, std::nullopt, ""},
      {TensorForms{rows, {}}, TensorForms{form({}, {4, std::nullopt}), rows}, ""},
      {TensorForms{{at::kDouble, {}}}, TensorForms{rows}, ""}};
  for (const Case& c : cases) expect_chain(c.gives, c.takes, c.message);
}

TEST(PhasesThatAreNotAsDeclared, AreRefusedWhenTheyRun) {
  const TensorForms rows{form(at::kDouble, {4, 8})};
  struct Case {
    Phase phase;
    std::string message;
  };
  const std::vector<Case> cases{
      {declaring(computing("take"), TensorForms{form(at::kDouble, {5, 8})}, {}),
       "[stage 0, phase \"take\"] must take what it declares, float64[5, 8], got float64[4, 8]"},
      {declaring(computing("give"), rows, TensorForms{rows[0], rows[0]}),
       "[stage 0, phase \"give\"] must give what it declares, float64[4, 8], float64[4, 8], got float64[4, 8]"},
      {declaring(exchanging("post"), TensorForms{}, {}),
       "[stage 0, phase \"post\"] must take what it declares, nothing, got float64[4, 8]"},
      {declaring(exchanging("wait"), rows, TensorForms{form(at::kFloat, {4, 8})}),
       "[stage 0, phase \"wait\"] must give what it declares, float32[4, 8], got float64[4, 8]"},
      {declaring(computing("right"), rows, rows), ""}};
  const Comparison comparison = mlp_comparison("1f1b", 1, 1);
  for (const Case& c : cases) {
    const auto errors = errors_of_ranks(1, [&](Rank& rank) {
      Pipeline pipeline = make_pipeline(comparison, rank, {stage_with({c.phase})});
      train_once(comparison, pipeline);
    });
    if (c.message.empty()) {
      EXPECT_EQ(errors[0].value_or(""), "");
    } else {
      EXPECT_THAT(errors[0].value_or(""), HasSubstr(c.message));
    }
  }
}

TEST(BadPhases, AreRefusedByTheirNumberOfTensors) {
  struct Case {
    Phase phase;
    std::string message;
  };
  const std::vector<Case> cases{
      {exchanging("back", 1, 2),
       "[stage 0, phase \"back\"] the way back must give a gradient for each of 1 inputs, got 2"},
      {changed(exchanging("sizes", 0),
               [](Phase& p) {
                 p.exchange_back = {};
                 p.spec.has_backward = false;
               }),
       "[stage 0, phase \"sizes\"] the outputs of an exchange without a way back start with its 1 inputs, got 0 "
       "tensors"},
      {changed(exchanging("none"), [](Phase& p) { p.exchange = [](auto&&...) { return nullptr; }; }),
       "[stage 0, phase \"none\"] an exchange must return what it started, got a null pointer"},
      {changed(computing("again"),
               [](Phase& p) {
                 p.recompute = true;
                 p.compute = [calls = 0](const TensorList& t, PhaseContext&) mutable {
                   return ++calls > 1 ? TensorList{t[0], t[0]} : t;
                 };
               }),
       "[stage 0, phase \"again\"] computed again it must give the same 1 tensors, got 2"}};
  const Comparison comparison = mlp_comparison("1f1b", 1, 1);
  for (const Case& c : cases) {
    const at::Tensor w = weight({8, 8}, 1);
    Phase first = computing("first");
    first.compute = [w](const TensorList& t, PhaseContext&) { return TensorList{at::linear(t.at(0), w)}; };
    const auto errors = errors_of_ranks(1, [&](Rank& rank) {
      Pipeline pipeline = make_pipeline(comparison, rank, {stage_with({first, c.phase, computing("last")})});
      train_once(comparison, pipeline);
    });
    EXPECT_THAT(errors[0].value_or(""), HasSubstr(c.message));
  }
}

// An exchange that counts how many of its kind are freed before they are awaited.
class Tracked final : public PendingExchange {
 public:
  Tracked(TensorList tensors, bool throws, std::atomic<int>& freed)
      : tensors_(std::move(tensors)), throws_(throws), freed_(freed) {}
  ~Tracked() override {
    if (!awaited_) ++freed_;
  }
  TensorList wait() override {
    if (throws_) throw std::runtime_error("the link is down");
    awaited_ = true;
    return tensors_;
  }

 private:
  TensorList tensors_;
  bool throws_;
  std::atomic<int>& freed_;
  bool awaited_ = false;
};

struct Failure {
  bool in_post;
  int call;  // Which exchange of the rank fails.
};

std::vector<Phase> failing_phases(const Failure& failure, std::shared_ptr<int> calls, std::atomic<int>& freed) {
  const auto exchange = [=, &freed](const TensorList& tensors, PhaseContext&) -> std::unique_ptr<PendingExchange> {
    const bool fails = ++*calls == failure.call;
    if (fails && failure.in_post) throw std::runtime_error("the link is down");
    TensorList copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone().set_requires_grad(true));
    return std::make_unique<Tracked>(std::move(copies), fails, freed);
  };
  const at::Tensor w = weight({8, 8}, 1);
  std::vector<Phase> phases;
  for (int i = 0; i < 3; ++i) {
    phases.push_back(computing("compute"));
    phases.back().compute = [w](const TensorList& t, PhaseContext&) { return TensorList{at::linear(t.at(0), w)}; };
    phases.push_back(computing("exchange"));
    phases.back().compute = {};
    phases.back().spec.kind = PhaseKind::kCommunication;
    phases.back().exchange = exchange;
    phases.back().exchange_back = exchange;
  }
  phases.push_back(computing("end"));
  return phases;
}

// Both ranks come back by the pipeline's failure path, and what was under way lives as long as the pipeline.
TEST(FailingExchanges, LeaveByTheFailurePathAndFreeNothingUnderWay) {
  const Comparison comparison = mlp_comparison("dualpipe", 2, 8);
  for (const Failure failure : {Failure{true, 2}, {false, 2}, {true, 40}, {false, 40}, {true, 41}, {false, 43}}) {
    std::atomic<int> freed = 0;
    std::atomic<int> pipelines = 0;
    const auto errors = errors_of_ranks(2, [&](Rank& rank) {
      auto calls = std::make_shared<int>(rank.index == 0 ? 0 : 1 << 20);  // Rank 1's never fail.
      PipelineOptions options = comparison.options;
      options.failures = rank.failures;
      options.timeout = std::chrono::seconds(20);
      Pipeline pipeline(
          "dualpipe", rank.transport,
          {stage_with(failing_phases(failure, calls, freed)), stage_with(failing_phases(failure, calls, freed))},
          options);
      try {
        train_once(comparison, pipeline);
      } catch (const PipelineError&) {
        EXPECT_EQ(freed, 0);
        ++pipelines;
        // Nobody's pipeline goes before all have looked.
        while (pipelines < 2) std::this_thread::yield();
        throw;
      }
    });
    EXPECT_EQ(pipelines, 2);
    for (const auto& error : errors) EXPECT_THAT(error.value_or(""), HasSubstr("the link is down"));
  }
}

}  // namespace
}  // namespace dualpipe
